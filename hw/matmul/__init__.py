"""Matrix multiplication: the unit that splits a MATMUL into tile passes and their rows."""
