"""Commands that read files: what is in them, whether they are whole, their episodes once more, pictures of them."""
