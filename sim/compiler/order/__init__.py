"""The order of jobs and instructions, and the search for the fastest.

:mod:`.search` tries divisions of the batch and orders of the instructions, and keeps the fastest. :mod:`.ordering` orders the
jobs. Updates are a :mod:`.pipeline`.
"""
