"""The demo: nodes in processes of their own, a crash among them, and accounts that add up.

__main__.py   the command line: options, signals, exit status
story.py      what happens when: certificates, start, kill, return, reconciliation
processes.py  child processes as the story sees them
node.py       the program of a child process
traffic.py    the load one node puts on another, and its accounts
records.py    what node processes and the story tell each other
board.py      the reports of a run, gathered second by second
screen.py     the board on a terminal or in a pipe
verdict.py    the reconciliation: what must add up
"""
