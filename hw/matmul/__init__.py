"""Matrix multiplication: from one MATMUL to the rows of its tile passes."""
