"""Tuned constants of the compiler. They change cycles, but no bits. Each line has the measurement that set it.

The value after the arrow changes the cycles of the named programs as stated. A constant that earns less than 0.2 % can go.
"""

# Memories, as one of this many parts
RESULTS_SHARE = 4  # of the unified buffer holds results. -> 3: kws +8.6 %, default-32 with Adam -0.4 %
UPDATES_SHARE = 3  # of the rows for operands and sums is for updates that begin early. -> 2: c +6.1 %, a +4.1 %; -> 4: a +0.9 %
HELD_SHARE = 3  # of the rows for sums is for sums between steps of an update. -> 2 or 4: default-32 with Adam +1.2 %
IMAGE_SHARE = 3  # of the rows for operands has the image of a sample that several jobs share. -> 1: vww +0.9 %, a-64 +0.6 %
TURNING_SHARE = 4  # of the accumulators transposes operands, if LOAD cannot.

# Function tables
TABLE_PART = 16  # vectors of a function table per LOAD, which have rows of the buffer of their own. -> 64: default-32 +0.1 %
TABLE_CYCLES = 700  # of the array, in which a binade is loaded before its use. -> 400: encoder block at batch 1 +2.4 %

# Rows, tiles and jobs in flight
LEAST_ROWS = 64  # fewer rows of a job do not hide the dispatch of its instructions. -> 128: c-8 +0.6 %
SHORT_ROWS = 64  # rows, up to which one ACTIVATE writes the results of several column tiles. -> 1: ring of default-64 +0.6 %
EXCHANGE_PARTS = 4  # of the accumulators: gradients of jobs in flight, and sums of their updates. -> 1: ring of default-64 +6.4 %
POOLED_PARTS = 1.5  # of the sums of a job in networks, if pooling takes longer than the sums. -> 1: c +5.1 %
LAYER_PARTS = 2  # of the sums of a job if jobs have whole samples; so later layers begin earlier. -> 1: c +4.9 %, a +3.8 %
DIVIDED_TILES = 3  # of a part of the samples are divided into at least two jobs. -> 1,000,000: default-64 +1.0 %
SAMPLE_JOBS = 3  # in the accumulators, if samples follow each other. -> 2: encoder block at batch 8 +5.9 %; -> 6: +5.7 %
UPDATE_JOBS = 3  # of updates in flight; one for each step if cores exchange gradients between.
UPDATE_ROWS = 64  # most rows of an UPDATE, for the overlap of its loads and stores with other UPDATEs
UPDATES_AT_ONCE = 3  # UPDATEs whose bias rows are loaded at the same time
GATHERED_TILES = 4  # that the cores of a ring gather at a time. -> 1: ring of default-64 +0.5 %

# Loads at the start and end of a program
LOAD_COST = 16  # cycles of a LOAD beside the cycles of its rows, if zeros are loaded. -> 0: vww +1.3 %, c-8 +0.2 %
STARTING = 4  # LOAD_WEIGHTS at the start of a run that load the tiles of one block each, except the last. -> 0: c +1.6 %
FIRST_LOADS = (0, 1, 3, 6, 10)  # tiles of inputs that precede the first loads of a step.
LAST_PART = 2  # column tiles, or tiles of inputs, of the last part of a job, with which no other work overlaps.
LAST_LOADS = (7, 3, 1)  # tiles of inputs from each of the last loads on, in a step of one column tile.

# Order of jobs
WINDOW_PART = 1_000  # cycles of the array in windows, after which jobs of updates may follow. -> only between jobs: a-8 +3.7 %
WORTH = 100  # cycles that the array waits for a job, from which updates precede it.
LAYER_LATENCY = 120  # cycles from the last result of a job to a job that reads it. -> 60: encoder block at batch 8 +2.9 %
TOLERATED = 32  # cycles that the array waits for a job of an earlier layer. -> 0 or 64: encoder block at batch 8 +1.0, +0.8 %

# Chunks of the batch
CHUNKS = ((3, 1), (2, 1), (0, 0), (2, 2), (4, 1))  # tried sizes of chunks and of the last one, in units of n or `LAST_CHUNK`
LAST_CHUNK = 16  # samples of the last chunk; fewer do not hide the dispatch of instructions

# Search: more programs are tried than these limits allow only at the cost of compile time
ORDERS = ((1, 250), (2, 0), (1, 0), (0, 250), (3, 0))  # `eager` and `late` of `ordered`
SIMULATED = 24_000  # instructions, over all orders after the first, whose cycles are compared. -> 6,000: vww +1.5 %
MOST_SIMULATED = 30_000  # instructions, over all divisions of the batch
MOST_ORDERED = 60_000  # instructions of which several orders are compared
SHORT_PROGRAM = 300  # instructions of a network's program, up to which all its orders are compared.
STEP_ROWS = 128  # of the jobs of transformers' steps, tried before the most rows. -> not tried: GPT at batch 16 +1.6 %
TRIED_ROWS = 48  # of the jobs of networks, tried beside the most rows: the first job waits for few operands.
