# How this flake, and only this flake, imports nixpkgs.
{
  # CUDA's compiler and headers are unfree.
  allowUnfree = true;
  cudaSupport = true;
  # H100 and H200; B200; RTX PRO 6000; GB10 (DGX Spark).
  cudaCapabilities = [
    "9.0"
    "10.0"
    "12.0"
    "12.1"
  ];
  # Machine code only: a 13.0 driver cannot compile the PTX of a 13.2 toolkit, but it runs its machine code.
  cudaForwardCompat = false;
}
