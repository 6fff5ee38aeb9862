// Starts a program as so many processes, as torchrun would, and ends with the
// first exit status that is not 0. Without LibTorch, so that it can fork.
//
//   launch [--killed|--stopped] N program arguments...
//
// With --killed the last process is to be killed, with --stopped to be stopped,
// and the others to end well.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <vector>

namespace {

using Clock = std::chrono::steady_clock;

constexpr auto kMost = std::chrono::seconds(1200);
/// How long the others have to notice that one failed.
constexpr auto kAfterFailure = std::chrono::seconds(30);

/// Returns whether a server can listen on this port.
bool is_free(int port) {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_ANY);
  address.sin_port = htons(static_cast<uint16_t>(port));
  const bool free =
      bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  close(fd);
  return free;
}

/// Returns a port for the store of the group. The system gives ports above
/// 32767 to connections, which could take one before the store listens;
/// launches at the same time begin to look at different ports.
int free_port() {
  constexpr int kFirst = 10000;
  constexpr int kCount = 20000;
  for (int i = 0; i < kCount; ++i) {
    const int port = kFirst + (getpid() * 31 + i) % kCount;
    if (is_free(port)) {
      return port;
    }
  }
  std::fputs("launch: no free port\n", stderr);
  std::exit(1);
}

pid_t start(int rank, int size, int port, char** program) {
  const auto pid = fork();
  if (pid != 0) {
    return pid;
  }
  const auto set = [](const char* name, const std::string& value) {
    setenv(name, value.c_str(), /*overwrite=*/1);
  };
  set("RANK", std::to_string(rank));
  set("LOCAL_RANK", std::to_string(rank));
  set("WORLD_SIZE", std::to_string(size));
  set("MASTER_ADDR", "127.0.0.1");
  set("MASTER_PORT", std::to_string(port));
  set("OMP_NUM_THREADS", "1");
  unsetenv("TORCHELASTIC_USE_AGENT_STORE");
  execv(program[0], program);
  std::perror(program[0]);
  _exit(1);
}

/// Returns a shell's exit status.
int status_of(int status) {
  return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

bool has_stopped(pid_t process) {
  siginfo_t info{};
  return process != 0 &&
      waitid(P_PID, process, &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 &&
      info.si_code == CLD_STOPPED;
}

} // namespace

int main(int argc, char** argv) {
  const std::string fault = argc > 1 ? argv[1] : "";
  const bool stopped = fault == "--stopped";
  const bool killed = fault == "--killed" || stopped;
  argv += killed ? 1 : 0;
  argc -= killed ? 1 : 0;
  if (argc < 3 || std::atoi(argv[1]) < 1) {
    std::fprintf(
        stderr, "usage: launch [--killed|--stopped] N program arguments...\n");
    return 2;
  }
  const int size = std::atoi(argv[1]);
  const int port = free_port();
  std::vector<pid_t> running;
  for (int rank = 0; rank < size; ++rank) {
    running.push_back(start(rank, size, port, argv + 2));
  }
  auto end = Clock::now() + kMost;
  int result = 0;
  size_t left = running.size();
  while (left > 0) {
    if (stopped && left == 1 && has_stopped(running.back())) {
      // The others are done.
      kill(running.back(), SIGKILL);
    }
    for (size_t rank = 0; rank < running.size(); ++rank) {
      int status = 0;
      if (running[rank] == 0 || waitpid(running[rank], &status, WNOHANG) == 0) {
        continue;
      }
      running[rank] = 0;
      --left;
      auto code = status_of(status);
      if (killed && rank + 1 == running.size()) {
        code = code == 128 + SIGKILL ? 0 : 1;
      }
      if (code != 0) {
        std::fprintf(stderr, "launch: process %zu ended with %d\n", rank, code);
        if (result == 0) {
          result = code;
          end = std::min(end, Clock::now() + kAfterFailure);
        }
      }
    }
    if (left > 0 && Clock::now() > end) {
      for (size_t rank = 0; rank < running.size(); ++rank) {
        if (running[rank] != 0) {
          std::fprintf(stderr, "launch: process %zu still ran\n", rank);
          kill(running[rank], SIGKILL);
        }
      }
      result = result == 0 ? 124 : result;
      end = Clock::now() + kMost;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return result;
}
