#include <atomic_file.h>
#include <support/files.h>
#include <support/temporary_folder.h>
#include <support/test.h>

#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <cstring>
#include <fstream>
#include <memory>
#include <random>
#include <thread>

namespace atomic_file_test {

using namespace torch_attention;
using namespace torch_attention::testing;

namespace {

void write_all(const std::string& path, const std::string& text) {
  AtomicFile file(path);
  file.write(text.data(), text.size());
  file.commit();
}

void link(const std::string& target, const std::string& path) {
  REQUIRE(::symlink(target.c_str(), path.c_str()) == 0);
}

mode_t mode_of(const std::string& path) {
  return status_of(path).st_mode & 07777;
}

/// Runs `body` in a process of its own, which then is killed.
template <typename Body>
void run_and_kill(const Body& body) {
  const auto child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    body();
    ::raise(SIGKILL);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
}

/// While it lives, the program has the rights of a user who owns nothing.
class Nobody {
 public:
  Nobody() : user_(::geteuid()) {
    constexpr uid_t kNobody = 65534;
    if (user_ == 0) {
      REQUIRE(::seteuid(kNobody) == 0);
    }
  }
  ~Nobody() {
    static_cast<void>(::seteuid(user_) == 0);
  }
  Nobody(const Nobody&) = delete;
  Nobody& operator=(const Nobody&) = delete;

 private:
  uid_t user_;
};

} // namespace

TEST_CASE("A symbolic link stays, and its file is written") {
  const TemporaryFolder folder;
  const TemporaryFolder other;
  const auto name = folder.file("link.pt");
  const auto file = other.file("file.pt");

  SECTION("to a file elsewhere") {
    std::ofstream(file) << "old";
    link(file, name);
  }
  SECTION("to no file yet") {
    link(file, name);
  }
  SECTION("over other links, one of them relative") {
    std::ofstream(file) << "old";
    link(other.path(), folder.file("there"));
    link("there/file.pt", folder.file("second"));
    link("second", name);
  }
  write_all(name, "new");
  CHECK(is_symlink(name));
  CHECK_FALSE(is_symlink(file));
  CHECK(read_all(file) == "new");
  CHECK(files_in(other.path()) == std::vector<std::string>{"file.pt"});
}

TEST_CASE("A symbolic link that leads nowhere is refused") {
  const TemporaryFolder folder;
  link("b", folder.file("a"));
  link("a", folder.file("b"));
  THROWS_WITH(write_all(folder.file("a"), "new"), "Too many levels");
  link("none/file", folder.file("c"));
  THROWS_WITH(
      write_all(folder.file("c"), "new"),
      "(a link to \"" + folder.file("none/file") +
          "\"): its folder: No such file or directory");
  CHECK(files_in(folder.path()) == std::vector<std::string>{"a", "b", "c"});
}

TEST_CASE("An existing file keeps its mode") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.pt");
  const mode_t mode = GENERATE(0600, 0640, 0644, 0664, 0666, 0777);
  CAPTURE(mode);
  std::ofstream(path) << "old";
  REQUIRE(::chmod(path.c_str(), mode) == 0);
  {
    AtomicFile file(path);
    file.write("new", 3);
    // Nobody else reads it before it is whole.
    for (const auto& name : files_in(folder.path())) {
      CHECK((name == "a.pt" || mode_of(folder.file(name)) == 0600));
    }
    file.commit();
  }
  CHECK(mode_of(path) == mode);
  CHECK(read_all(path) == "new");
}

TEST_CASE("A new file has the mode that umask leaves") {
  const TemporaryFolder folder;
  const mode_t mask = GENERATE(0022, 0027, 0077, 0000);
  const auto old = ::umask(mask);
  write_all(folder.file("a.pt"), "new");
  ::umask(old);
  CHECK(mode_of(folder.file("a.pt")) == (0666 & ~mask));
}

TEST_CASE("An existing file keeps its owner") {
  if (::geteuid() != 0) {
    WARN("only the superuser gives files away: not tested");
    return;
  }
  const TemporaryFolder folder;
  const auto path = folder.file("a.pt");
  std::ofstream(path) << "old";
  REQUIRE(::chown(path.c_str(), 1234, 2345) == 0);
  REQUIRE(::chmod(path.c_str(), 0640) == 0);
  write_all(path, "new");
  CHECK(status_of(path).st_uid == 1234);
  CHECK(status_of(path).st_gid == 2345);
  CHECK(mode_of(path) == 0640);

  // A new file that cannot get the old one's group grants no rights to another.
  REQUIRE(::chmod(path.c_str(), 0666) == 0);
  REQUIRE(::chmod(folder.path().c_str(), 0777) == 0);
  {
    const Nobody nobody;
    write_all(path, "newer");
  }
  CHECK(status_of(path).st_uid == 65534);
  CHECK(mode_of(path) == 0606);
  CHECK(read_all(path) == "newer");
}

TEST_CASE("What is no regular file is refused, and stays") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.pt");
  std::string kind;
  SECTION("a folder") {
    kind = "a folder";
    REQUIRE(::mkdir(path.c_str(), 0700) == 0);
  }
  SECTION("a pipe") {
    kind = "a pipe";
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  }
  SECTION("a device") {
    kind = "a device";
    link("/dev/null", path);
  }
  SECTION("a socket") {
    kind = "a socket";
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    REQUIRE(path.size() < sizeof(address.sun_path));
    std::strcpy(address.sun_path, path.c_str());
    const Descriptor socket(::socket(AF_UNIX, SOCK_STREAM, 0));
    REQUIRE(
        ::bind(
            socket.number(),
            reinterpret_cast<const sockaddr*>(&address),
            sizeof(address)) == 0);
  }
  const auto before = status_of(path);
  THROWS_WITH(write_all(path, "new"), "\"" + path + "\"");
  THROWS_WITH(
      write_all(path, "new"), "expected a regular file, but it is " + kind);
  CHECK(status_of(path).st_ino == before.st_ino);
  CHECK(status_of(path).st_mode == before.st_mode);
  CHECK(files_in(folder.path()) == std::vector<std::string>{"a.pt"});
}

TEST_CASE("Names of files may be as long as the file system allows") {
  const TemporaryFolder folder;
  constexpr size_t kLongest = 255;
  const std::string name =
      std::string(kLongest - 3, 'a').replace(10, 6, "äöü") + ".pt";
  REQUIRE(name.size() == kLongest);
  write_all(folder.file(name), "new");
  CHECK(files_in(folder.path()) == std::vector<std::string>{name});
}

TEST_CASE("Names that are none are refused") {
  const TemporaryFolder folder;
  THROWS_WITH(
      write_all(folder.file(std::string(256, 'a')), "new"),
      "File name too long");
  THROWS_WITH(write_all("", "new"), "expected the name of a file");
  THROWS_WITH(
      write_all(folder.file("none/"), "new"), "expected the name of a file");
  THROWS_WITH(
      write_all(folder.file(std::string("a.pt\0b", 6)), "new"), "NUL byte");
  THROWS_WITH(
      write_all(folder.file("none/a.pt"), "new"),
      "its folder: No such file or directory");
  write_all(folder.file("file"), "new");
  THROWS_WITH(write_all(folder.file("file/a.pt"), "new"), "Not a directory");
  CHECK(files_in(folder.path()) == std::vector<std::string>{"file"});
}

TEST_CASE("What may not be written is refused, and stays") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.pt");
  std::ofstream(path) << "old";
  SECTION("a file") {
    REQUIRE(::chmod(path.c_str(), 0444) == 0);
    REQUIRE(::chmod(folder.path().c_str(), 0777) == 0);
    const Nobody nobody;
    THROWS_WITH(write_all(path, "new"), "Permission denied");
  }
  SECTION("in a folder") {
    REQUIRE(::chmod(path.c_str(), 0666) == 0);
    REQUIRE(::chmod(folder.path().c_str(), 0555) == 0);
    {
      const Nobody nobody;
      THROWS_WITH(
          write_all(path, "new"),
          "a new file in its folder: Permission denied");
    }
    REQUIRE(::chmod(folder.path().c_str(), 0755) == 0);
  }
  CHECK(read_all(path) == "old");
  CHECK(files_in(folder.path()) == std::vector<std::string>{"a.pt"});
}

TEST_CASE("The part of a killed program is removed by the next one") {
  const TemporaryFolder folder;
  const auto name = GENERATE(std::string("a.pt"), std::string(255, 'a'));
  const auto path = folder.file(name);
  std::ofstream(path) << "old";
  for (int i = 0; i < 3; ++i) {
    run_and_kill([&] {
      AtomicFile first(path);
      AtomicFile second(path);
      second.write("half", 4);
      ::raise(SIGKILL);
    });
    CHECK(files_in(folder.path()).size() == 3);
    CHECK(read_all(path) == "old");
  }
  write_all(path, "new");
  CHECK(files_in(folder.path()) == std::vector<std::string>{name});
  CHECK(read_all(path) == "new");
}

TEST_CASE("The part of a program that still writes is left alone") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.pt");
  AtomicFile slow(path);
  slow.write("sl", 2);
  run_and_kill([&] { write_all(path, "fast"); });
  CHECK(read_all(path) == "fast");
  CHECK(files_in(folder.path()).size() == 2);
  slow.write("ow", 2);
  slow.commit();
  CHECK(read_all(path) == "slow");
  CHECK(files_in(folder.path()) == std::vector<std::string>{"a.pt"});
}

TEST_CASE("Other files that are called like a part are no parts") {
  const TemporaryFolder folder;
  for (const auto* name : {"a.pt.part-0", "a.pt.part-1-0", "b.pt"}) {
    std::ofstream(folder.file(name)) << name;
  }
  link("b.pt", folder.file("a.pt.torch-attention-part-0"));
  REQUIRE(
      ::mkfifo(folder.file("a.pt.torch-attention-part-1").c_str(), 0600) == 0);
  write_all(folder.file("a.pt"), "new");
  CHECK(files_in(folder.path()).size() == 6);
  CHECK(read_all(folder.file("b.pt")) == "b.pt");
}

TEST_CASE("Many write one file at once, and one of them wins") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.pt");
  constexpr int kThreads = 8;
  constexpr int kRounds = 50;
  constexpr size_t kSize = 10'000;
  std::vector<std::string> errors(kThreads);
  std::vector<std::thread> threads;
  for (int i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      try {
        for (int round = 0; round < kRounds; ++round) {
          const std::string text(kSize, static_cast<char>('a' + i));
          AtomicFile file(path);
          file.write(text.data(), kSize / 2);
          file.write(text.data(), kSize / 2);
          file.commit();
        }
      } catch (const c10::Error& error) {
        errors[static_cast<size_t>(i)] = error.what_without_backtrace();
      }
    });
  }
  for (auto& thread : threads) {
    thread.join();
  }
  CHECK(errors == std::vector<std::string>(kThreads));
  const auto text = read_all(path);
  CHECK(text == std::string(kSize, text.at(0)));
  CHECK(files_in(folder.path()) == std::vector<std::string>{"a.pt"});
}

TEST_CASE("Too many at once are told what is in their way") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.pt");
  std::vector<std::unique_ptr<AtomicFile>> files;
  constexpr int kMost = 64;
  for (int i = 0; i < kMost; ++i) {
    files.push_back(std::make_unique<AtomicFile>(path));
  }
  THROWS_WITH(
      write_all(path, "new"),
      "64 others write it, or left \"a.pt.torch-attention-part-0\"");
  files.pop_back();
  write_all(path, "new");
  files.clear();
  CHECK(files_in(folder.path()) == std::vector<std::string>{"a.pt"});
}

TEST_CASE("Killed at any time, a program leaves a whole file") {
  const TemporaryFolder folder;
  const auto path = folder.file("a.pt");
  constexpr size_t kSize = 200'000;
  write_all(path, std::string(kSize, 'a'));
  std::mt19937 random(1);
  for (int round = 0; round < 40; ++round) {
    const auto child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
      for (int i = 0;; ++i) {
        write_all(path, std::string(kSize, static_cast<char>('a' + i % 26)));
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 5000));
    ::kill(child, SIGKILL);
    REQUIRE(::waitpid(child, nullptr, 0) == child);
    const auto text = read_all(path);
    REQUIRE(text == std::string(kSize, text.at(0)));
    REQUIRE(files_in(folder.path()).size() <= 2);
  }
  write_all(path, "new");
  CHECK(files_in(folder.path()) == std::vector<std::string>{"a.pt"});
}

} // namespace atomic_file_test
