# What the Rust builds read, and nothing else: a change of the docs rebuilds no binary.
{ lib }:
lib.fileset.toSource {
  root = ../.;
  fileset = lib.fileset.unions [
    ../Cargo.toml
    ../Cargo.lock
    ../clippy.toml
    ../crates
    ../kernels
  ];
}
