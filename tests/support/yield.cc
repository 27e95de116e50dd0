// Preloaded into ranks that share cores: one that waits sleeps, so that one that computes has the
// core. MPI libraries wait by calling sched_yield() in a loop; with four ranks on two cores the
// kernel gives waiting ranks much of the time, and more while other programs run.

#include <ctime>

extern "C" int sched_yield() {
  const timespec pause{0, 20000};
  nanosleep(&pause, nullptr);
  return 0;
}
