/* What MPI ranks need to meet: from main to the end of a barrier after MPI_Init; the slowest rank's, in milliseconds. */
#include <mpi.h>
#include <stdio.h>
#include <time.h>

static double now(void) {
  struct timespec at;
  clock_gettime(CLOCK_MONOTONIC, &at);
  return at.tv_sec * 1e3 + at.tv_nsec / 1e6;
}

int main(int argc, char **argv) {
  double began = now(), took, worst = 0;
  int rank = 0;
  if (MPI_Init(&argc, &argv) != MPI_SUCCESS) return 1;
  MPI_Barrier(MPI_COMM_WORLD);
  took = now() - began;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Reduce(&took, &worst, 1, MPI_DOUBLE, MPI_MAX, 0, MPI_COMM_WORLD);
  if (rank == 0) printf("%.3f\n", worst);
  return MPI_Finalize() == MPI_SUCCESS ? 0 : 1;
}
