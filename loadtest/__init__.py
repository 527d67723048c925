"""Load tests and cost experiments: workloads, load over HTTP, sweeps of settings, reports and a capacity model."""
