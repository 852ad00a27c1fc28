#include "daemon/worker/worker_main.h"

int main(int argc, char** argv) { return regroup::WorkerMain(argc, argv); }
