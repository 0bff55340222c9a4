"""The CUDA target: KernelSpec -> CUDA C++ text -> cubin through NVRTC. Importing it needs neither CUDA nor a device."""
