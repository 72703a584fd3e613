"""RTL simulation: builds, runs, probes, waveforms and the host memory model."""
