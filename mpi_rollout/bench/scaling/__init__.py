"""Scaling studies: how much faster more ranks are, how sure that is, and what holds them back.

study       points, order, the file and its parts      report      as text
samples     what jobs gave, as rows                    figures     as a picture
analysis    from samples to figures                    runner      does the study

sim         carries the model to many ranks, checks it
"""
