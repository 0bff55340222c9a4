"""Other systems beside this one: `interop.torch` runs PyTorch's graphs on plans of ours."""
