#include "tests/cli/process.h"

#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <thread>

extern char** environ;

namespace fovea::cli {
namespace {

std::string content_of(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

// The word after `name` in a file of /proc/PID; empty when it has none.
std::string word_after(const std::string& name, int pid, const std::string& file) {
  std::ifstream text("/proc/" + std::to_string(pid) + "/" + file);
  for (std::string word; text >> word;) {
    if (word == name && text >> word) return word;
  }
  return "";
}

bool handles_interrupt(int pid) {
  const std::string caught = word_after("SigCgt:", pid, "status");
  return !caught.empty() && (std::stoull(caught, nullptr, 16) >> (SIGINT - 1) & 1u) != 0;
}

}  // namespace

Process::Process(const std::vector<std::string>& arguments, const std::string& input)
    : input_size_(input.size()) {
  std::ofstream(folder_.file("in"), std::ios::binary) << input;

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  const auto redirect = [&](int descriptor, const char* name, int flags) {
    posix_spawn_file_actions_addopen(&actions, descriptor, folder_.file(name).c_str(), flags, 0600);
  };
  redirect(STDIN_FILENO, "in", O_RDONLY);
  redirect(STDOUT_FILENO, "out", O_WRONLY | O_CREAT);
  redirect(STDERR_FILENO, "err", O_WRONLY | O_CREAT);
  std::vector<std::string> words = {FOVEA_BINARY};
  words.insert(words.end(), arguments.begin(), arguments.end());
  std::vector<char*> argv;
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  const int error = posix_spawn(&pid_, FOVEA_BINARY, &actions, nullptr, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  if (error != 0) throw std::runtime_error("cannot start " FOVEA_BINARY);
}

Process::~Process() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
}

void Process::interrupt() {
  interrupt_when([&] {
    return handles_interrupt(pid_) &&
           word_after("pos:", pid_, "fdinfo/0") == std::to_string(input_size_);
  });
}

void Process::interrupt_after_output() {
  interrupt_when([&] {
    std::error_code ignored;
    const auto size = std::filesystem::file_size(folder_.file("out"), ignored);
    return !ignored && size > 0;
  });
}

void Process::interrupt_when(const std::function<bool()>& is_ready) {
  for (int i = 0; i < 6000 && !is_ready(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  kill(pid_, SIGINT);
}

ProcessResult Process::wait() {
  int status = 0;
  waitpid(pid_, &status, 0);
  pid_ = -1;
  ProcessResult result;
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
  result.out = content_of(folder_.file("out"));
  result.err = content_of(folder_.file("err"));
  return result;
}

}  // namespace fovea::cli
