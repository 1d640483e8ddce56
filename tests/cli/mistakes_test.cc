// Every mistake a user can make: one clear line that names the thing, and exit code 2.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>

#include "tests/cli/process.h"

namespace fovea::cli {
namespace {

using testing::HasSubstr;
using testing::StartsWith;

const std::string kModel = "models/needle_7m";

using Arguments = std::vector<std::string>;

void expect_mistake(const Arguments& arguments, const std::string& named,
                    const std::string& input = "") {
  const ProcessResult result = run_fovea(arguments, input);
  std::string line = "fovea";
  for (const std::string& argument : arguments) line += " " + argument;
  EXPECT_EQ(result.exit_code, 2) << line << "\n" << result.err;
  EXPECT_THAT(result.err, StartsWith("fovea: error: ")) << line;
  EXPECT_THAT(result.err, HasSubstr(named)) << line;
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << line << "\n"
                                                                       << result.err;
  EXPECT_EQ(result.out, "") << line;
}

Arguments run_with(const Arguments& more) {
  Arguments arguments = {"run", "-m", kModel};
  arguments.insert(arguments.end(), more.begin(), more.end());
  return arguments;
}

// A folder in which a test breaks a copy of the model.
class BrokenModelTest : public testing::Test {
 protected:
  BrokenModelTest() { std::filesystem::copy(kModel, folder_); }
  void replace_in_config(const std::string& from, const std::string& to) {
    std::ifstream file(folder_ + "/config.json");
    std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
    const size_t at = text.find(from);
    ASSERT_NE(at, std::string::npos) << from;
    std::ofstream(folder_ + "/config.json") << text.replace(at, from.size(), to);
  }
  const test::TempDir temp_dir_;
  const std::string folder_ = temp_dir_.path();
};

TEST(Mistake, CommandLine) {
  expect_mistake({"frobnicate"}, "unknown command \"frobnicate\"");
  expect_mistake({"run"}, "give either --model FILE or --synthetic NAME");
  expect_mistake(run_with({"-p", "x", "--frob"}), "--frob");
  expect_mistake({"--frob"}, "unknown option \"--frob\"");
}

TEST(Mistake, WordsThatAreNearlyRight) {
  expect_mistake(run_with({"-p", "x", "--atention", "dense"}),
                 "unknown option \"--atention\", did you mean --attention? (see fovea run --help)");
  expect_mistake(run_with({"-p", "x", "--frobnicate=3"}), "unknown option \"--frobnicate\" (see");
  expect_mistake({"evaal"}, "unknown command \"evaal\", did you mean eval? (see fovea --help)");
  expect_mistake(run_with({"-p", "x", "-n", "1", "-n", "2"}),
                 "--max-new-tokens is given more than once (see");
}

TEST(Mistake, KernelsOfAGpu) {
  expect_mistake({"kernels", "--device", "tpu"}, "--device must be cpu, cuda or cuda:N");
  expect_mistake({"kernels", "--device", "cuda", "--lengths", "2K"}, "--lengths does not apply");
  expect_mistake({"kernels", "--device", "cuda", "--cases", "dense,foo"}, "not \"foo\"");
  expect_mistake({"kernels", "--device", "cuda", "--regime", "calm"}, "sustained or burst");
  expect_mistake({"kernels", "--cases", "dense"}, "--cases needs --device cuda");
}

// No mistake, but a user meets it: a machine or a build without a GPU.
TEST(Mistake, NoGpuIsOneClearLine) {
  const ProcessResult result = run_fovea({"kernels", "--device", "cuda:99"});
  EXPECT_NE(result.exit_code, 0);
  EXPECT_THAT(result.err, testing::AnyOf(HasSubstr("no GPU"), HasSubstr("has no CUDA")));
  EXPECT_EQ(std::count(result.err.begin(), result.err.end(), '\n'), 1) << result.err;
  EXPECT_EQ(result.out, "");
}

TEST(Mistake, ModelPath) {
  expect_mistake({"run", "-m", "no/such/model", "-p", "x"}, "no/such/model");
  expect_mistake({"inspect", "no/such/model"}, "no/such/model");
  expect_mistake({"inspect", "LICENSE"}, "LICENSE");
  expect_mistake({"inspect", "tests"}, "tests");
}

TEST_F(BrokenModelTest, Truncated) {
  std::filesystem::resize_file(folder_ + "/model.safetensors", 5000000);
  expect_mistake({"inspect", folder_}, "model.safetensors");
  expect_mistake({"run", "-m", folder_, "-p", "x"}, "model.safetensors");
}

TEST_F(BrokenModelTest, UnknownArchitecture) {
  replace_in_config("Qwen3ForCausalLM", "FrobForCausalLM");
  replace_in_config("\"qwen3\"", "\"frob\"");
  expect_mistake({"inspect", folder_}, "rob");
  expect_mistake({"run", "-m", folder_, "-p", "x"}, "rob");
}

TEST_F(BrokenModelTest, NoConfiguration) {
  std::filesystem::remove(folder_ + "/config.json");
  expect_mistake({"run", "-m", folder_, "-p", "x"}, "config.json");
}

TEST_F(BrokenModelTest, NoTokenizer) {
  std::filesystem::remove(folder_ + "/tokenizer.json");
  expect_mistake({"run", "-m", folder_, "-p", "x"}, "tokenizer.json");
}

TEST(Mistake, Prompt) {
  expect_mistake(run_with({}), "the prompt is empty");
  expect_mistake(run_with({"-p", ""}), "the prompt is empty");
  expect_mistake(run_with({"-f", "-"}), "standard input holds no text", "");
  expect_mistake(run_with({"-f", "no/such/file"}), "no/such/file");
  expect_mistake(run_with({"-f", "tests"}), "tests");
  expect_mistake(run_with({"-p", "ab\xff"}), "the prompt is not UTF-8: byte 0xff at offset 2");
  expect_mistake(run_with({"-f", "-"}), "standard input is not UTF-8: byte 0xc3 at offset 2",
                 "ab\xc3");
  expect_mistake(run_with({"-p", "x", "--system", "y"}), "--system needs a chat template");
}

TEST(Mistake, FileWithoutText) {
  for (const char* command : {"bench", "needle", "eval"}) {
    expect_mistake({command, "-m", kModel, "-f", "-"}, "standard input holds no text");
    expect_mistake({command, "-m", kModel, "-f", "-"}, "standard input is not UTF-8", "ab\xff");
    expect_mistake({command, "-m", kModel, "-f", "/dev/null"}, "/dev/null holds no text");
  }
}

TEST(Mistake, FileWithoutAnEnd) {
  for (const Arguments& arguments :
       {run_with({"-f", "/dev/zero"}), Arguments{"conditions", "/dev/zero"},
        Arguments{"fit", "/dev/zero"}}) {
    expect_mistake(arguments, "/dev/zero is larger than 256 MiB");
  }
}

TEST(Mistake, MeasuringFilesAreNamed) {
  for (const char* command : {"trace", "conditions", "fit"}) {
    expect_mistake({command, "LICENSE"}, "error: LICENSE: ");
    expect_mistake({command, "no/such/file"}, "no/such/file");
    expect_mistake({command, "tests"}, "tests");
  }
}

TEST(Mistake, BytesThatATerminalWouldObeyAreNotShownAsTheyAre) {
  expect_mistake({"fit", "-"}, "column '?[2J?'", "n,\x1b[2J\xff\n1,2\n");
  expect_mistake({"inspect", "no/\x07such"}, R"(no/\x07such)");
}

TEST(Mistake, PromptLongerThanTheContext) {
  std::string text;
  for (int i = 0; i < 140000; ++i) text += " the";
  expect_mistake(run_with({"-f", "-"}), "context 131072", text);
  expect_mistake({"needle", "-m", kModel, "-f", "-", "--length", "128K"}, "context of 131072",
                 text);
  expect_mistake({"bench", "-m", kModel, "-f", "-", "--lengths", "132K"}, "context of 131072",
                 text);
}

TEST(Mistake, TextShorterThanTheLengthsAskedFor) {
  expect_mistake({"bench", "-m", kModel, "-f", "-", "--lengths", "4K"}, "the text has",
                 "too short");
  expect_mistake({"needle", "-m", kModel, "-f", "-", "--length", "4K"}, "more names", "too short");
}

TEST(Mistake, OutputThatCannotBeWrittenIsSaidBeforeTheWork) {
  for (const Arguments& arguments : {run_with({"-p", "x", "-o", "no/such/folder/x.json"}),
                                     run_with({"-p", "x", "-o", "tests"})}) {
    expect_mistake(arguments, "cannot write " + arguments.back());
  }
  expect_mistake({"bench", "-m", kModel, "-f", "LICENSE", "-o", "no/such/folder/x.json"},
                 "cannot write no/such/folder/x.json");
  expect_mistake({"needle", "-m", kModel, "-f", "LICENSE", "-o", "no/such/folder/x.json"},
                 "cannot write no/such/folder/x.json");
}

TEST(Mistake, OneFileForTwoThings) {
  const test::TempDir folder;
  const std::string file = folder.file("a.txt");
  const std::string link = folder.file("link.txt");
  std::ofstream(file) << "n,ttft_s\n1024,1\n2048,2\n4096,5\n";
  std::filesystem::create_symlink(file, link);
  const std::string named = " name the same file, " + folder.path();
  for (const Arguments& arguments :
       {run_with({"-f", file, "-o", link}), run_with({"-f", file, "--trace", link}),
        Arguments{"run", "-m", file, "-p", "x", "-o", link},
        Arguments{"bench", "-m", kModel, "-f", file, "-o", link},
        Arguments{"needle", "-m", kModel, "-f", file, "-o", link},
        Arguments{"eval", "-m", kModel, "-f", file, "--report", link},
        Arguments{"eval", "-m", kModel, "-f", "LICENSE", "--journal", file, "-o", link},
        Arguments{"eval", "-m", kModel, "-f", "LICENSE", "--texts", "LICENSE," + file, "-o", link},
        Arguments{"calibrate", "-m", kModel, "-f", file, "--max-loss", "1", "-o", link},
        Arguments{"fit", file, "--report", link}, Arguments{"conditions", file, "--report", link},
        Arguments{"trace", file, "--report", link}, Arguments{"trace", file, "--perfetto", link},
        Arguments{"sweep", "-m", kModel, "--csv", file, "-o", link},
        Arguments{"kernels", "-o", file, "--device-file", link}}) {
    expect_mistake(arguments, named);
  }
  EXPECT_EQ(std::filesystem::file_size(file), 30u);
  const std::string missing = folder.file("b.json");
  expect_mistake(run_with({"-p", "x", "-o", missing, "--trace", missing}), "name the same file");
  EXPECT_FALSE(std::filesystem::exists(missing));
}

TEST(Mistake, AFileWithoutAName) {
  expect_mistake(run_with({"-p", "x", "-o", ""}), "--output needs the name of a file");
  expect_mistake(run_with({"-p", "x", "-f", ""}), "--file needs the name of a file");
  expect_mistake({"run", "-m", "", "-p", "x"}, "--model needs the name of a file");
  expect_mistake({"fit", ""}, "the file to read needs the name of a file");
}

TEST(Mistake, OneStreamForTwoThings) {
  for (const Arguments& arguments : {run_with({"-p", "x", "-o", "-"}),
                                     Arguments{"bench", "-m", kModel, "-f", "LICENSE", "-o", "-"},
                                     Arguments{"kernels", "-o", "-"}}) {
    expect_mistake(arguments, "- is no name for a file to write");
  }
}

TEST(Mistake, SelectionOptionsWhereNothingIsSelected) {
  expect_mistake(run_with({"-p", "x", "--density", "0.1"}),
                 "--density is for sparse attention, but --attention is dense");
  expect_mistake(run_with({"-p", "x", "--attention", "dense", "--witnesses", "2"}), "--witnesses");
  for (const char* command : {"bench", "needle", "eval"}) {
    expect_mistake(
        {command, "-m", kModel, "-f", "LICENSE", "--attention", "dense", "--periphery", "mean"},
        "--periphery is for sparse attention");
  }
}

TEST(Mistake, Attention) {
  expect_mistake(run_with({"-p", "x", "--attention", "frob"}), "frob");
  expect_mistake({"bench", "-m", kModel, "-f", "LICENSE", "--attention", "dense,frob"}, "frob");
  expect_mistake({"bench", "-m", kModel, "-f", "LICENSE", "--attention", "dense,dense"}, "twice");
  expect_mistake({"bench", "-m", kModel, "-f", "LICENSE", "--attention", ","}, "empty entry");
  expect_mistake({"bench", "-m", kModel, "-f", "LICENSE", "--attention", ""}, "names no method");
  expect_mistake({"bench", "-m", kModel, "-f", "LICENSE", "--lengths", "1K,,2K"},
                 "--lengths has an empty entry in \"1K,,2K\"");
  expect_mistake({"eval", "-m", kModel, "-f", "LICENSE", "--tasks", "single,"}, "empty entry");
}

TEST(Mistake, Numbers) {
  expect_mistake(run_with({"-p", "x", "-n", "many"}), "many");
  expect_mistake(run_with({"-p", "x", "-n", "99999999999999999999"}), "99999999999999999999");
  for (const char* command : {"run", "needle", "eval"}) {
    for (const char* seed : {"-1", "1.5", "18446744073709551616"}) {
      expect_mistake({command, "-m", kModel, "-f", "LICENSE", "--seed", seed}, seed);
    }
  }
  expect_mistake(run_with({"-p", "x", "--attention", "rescue", "--density", "5%"}),
                 "--density: \"5%\" is not a number");
  expect_mistake(run_with({"-p", "x", "-n", "0"}), "-n must be positive, is 0");
  expect_mistake(run_with({"-p", "x", "-n", "-3"}), "-3");
  expect_mistake(run_with({"-p", "x", "--temperature", "-1"}), "temperature");
  expect_mistake(run_with({"-p", "x", "--temperature", "nan"}), "temperature");
  expect_mistake(run_with({"-p", "x", "--top-p", "1.5"}), "top_p");
  expect_mistake(run_with({"-p", "x", "--length", "8KB"}), "8KB");
  expect_mistake(run_with({"-p", "x", "--chunk-size", "-1"}), "--chunk-size");
  expect_mistake(run_with({"-p", "x", "--threads", "-1"}), "--threads");
  expect_mistake(run_with({"-p", "x", "--threads", "99999999999"}), "99999999999");
  expect_mistake(run_with({"-p", "x", "--threads", "100000"}), "--threads must be in 0 ... 1024");
  expect_mistake(run_with({"-p", "x", "--dtype", "f64"}), "f64");
  for (const auto& [knob, value, named] :
       {std::array{"--density", "1.5", "density"}, std::array{"--density", "nan", "density"},
        std::array{"--alpha-base", "-1", "alpha_base"},
        std::array{"--witnesses", "9", "num_witnesses"},
        std::array{"--block-size", "0", "block_size"},
        std::array{"--sink-blocks", "-1", "sink_blocks"}, std::array{"--quantiles", "some", "some"},
        std::array{"--aggregation", "mean", "sum or max or max_over_means"},
        std::array{"--witness-choice", "best", "best"}, std::array{"--witness-type", "f4", "f4"},
        std::array{"--calm-quantile", "2", "calm_quantile"}, std::array{"--lists", "all", "all"},
        std::array{"--periphery", "maybe", "maybe"}}) {
    expect_mistake(run_with({"-p", "x", "--attention", "rescue", knob, value}), named);
  }
  expect_mistake({"bench", "-m", kModel, "-f", "LICENSE", "--lengths", "0"}, "--lengths");
  expect_mistake({"bench", "-m", kModel, "-f", "LICENSE", "--repetitions", "0"}, "repetitions");
  expect_mistake({"eval", "-m", kModel, "-f", "LICENSE", "--tasks", "triple"}, "triple");
  expect_mistake({"eval", "-m", kModel, "-f", "LICENSE", "--attention", "witness:9"}, "witness:9");
  for (const char* word : {"witness:", "witness:4:frob", "witness:calm=", "witness:calm=half"}) {
    expect_mistake({"eval", "-m", kModel, "-f", "LICENSE", "--attention", word}, word);
  }
  expect_mistake({"eval", "-m", kModel, "-f", "LICENSE", "--attention", "witness:calm=2"},
                 "calm_quantile");
  expect_mistake({"eval", "-m", kModel, "-f", "LICENSE", "--attention", "witness:max:skip"},
                 "skip_by_bound needs aggregation sum");
  expect_mistake({"eval", "-m", kModel, "-f", "LICENSE", "-n", "0"}, "--questions");
  expect_mistake({"needle", "-m", kModel, "-f", "LICENSE", "--documents", "0"}, "--documents");
  expect_mistake({"kernels", "--q-heads", "3", "--kv-heads", "2"}, "--q-heads must be a multiple");
  expect_mistake({"kernels", "--head-dim", "0"}, "--head-dim");
  expect_mistake({"kernels", "--attention", "dense"}, "dense attention selects nothing");
  expect_mistake({"kernels", "--min-seconds", "-1"}, "--min-seconds");
  expect_mistake({"kernels", "--lengths", "1"}, "--lengths must be at least a block, 128 tokens");
}

}  // namespace
}  // namespace fovea::cli
