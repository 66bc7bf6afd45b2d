"""A clearing house: five nodes in processes of their own, killed at work, and accounts that add up.

__main__.py      the entry: nothing but the exit status
commandline.py   options, signals, the directory
story.py         what happens when
stage.py         the nodes: configured, started, asked, killed
bank.py          the program of a bank: a service, flows, a consumer, and its tellers
house.py         the program of the clearing house: the job, and what it makes known
job.toml         that job
job.py           its functions
payments.py      payments, the same in every run
books.py         what the run left in the databases
verdict.py       the reconciliation: what must add up
board.py         how things stand, second by second
screen.py        tables on a terminal or in a pipe
"""
