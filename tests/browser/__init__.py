"""The dashboard in a real browser, before nodes that really run.

shop.py      the program of the nodes
sums.py      the functions of their job
stage.py     nodes as processes, and their API
watcher.py   a page, and whatever goes wrong in it
"""
