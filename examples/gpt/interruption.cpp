#include "interruption.h"

#include <csignal>

namespace gpt {

namespace {

volatile std::sig_atomic_t came = 0;

void note(int signal) {
  came = signal;
}

void handle(int signal) {
  struct sigaction before {};
  if (sigaction(signal, nullptr, &before) == 0 &&
      before.sa_handler != SIG_IGN) {
    struct sigaction action {};
    action.sa_handler = note;
    // The default returns with the first signal.
    action.sa_flags = static_cast<int>(SA_RESETHAND) | SA_RESTART;
    sigaction(signal, &action, nullptr);
  }
}

void release(int signal) {
  struct sigaction current {};
  if (sigaction(signal, nullptr, &current) == 0 && current.sa_handler == note) {
    std::signal(signal, SIG_DFL);
  }
}

} // namespace

Interruption::Interruption() {
  came = 0;
  handle(SIGINT);
  handle(SIGTERM);
}

Interruption::~Interruption() {
  release(SIGINT);
  release(SIGTERM);
}

int Interruption::signal() {
  return came;
}

void Interruption::raise_again() {
  if (came != 0) {
    std::signal(came, SIG_DFL);
    std::raise(came);
  }
}

} // namespace gpt
