"""Xarray and Dask over sessions: datasets in and out, and the files that Xarray knows."""
