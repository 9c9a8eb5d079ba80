"""`launch`: a trainer starts the ranks by itself and is none of them; its process never loads MPI."""
