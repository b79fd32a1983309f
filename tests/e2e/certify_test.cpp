// `evaluate certify`: the verdict by kind of text, its files, and what it does to a checkpoint's card.
#include <gtest/gtest.h>

#include <cctype>
#include <filesystem>
#include <fstream>
#include <functional>
#include <span>

#include "formats/container.h"
#include "tests/support/command_test.h"

namespace fewbit::test {
namespace {

class Certify : public CommandTest {
 protected:
  // A copy of `from` whose tensor has its bytes changed by `change`.
  void damage(const std::string& from, const std::string& to, const std::string& tensor,
              const std::function<void(std::span<uint8_t>)>& change) {
    namespace fs = std::filesystem;
    fs::copy(dir / from, dir / to);
    fs::permissions(dir / to / "model.safetensors", fs::perms::owner_write, fs::perm_options::add);
    const TensorInfo at = container_safetensors.open(dir / to).tensors.at(tensor);
    std::string bytes = bytes_of_file(dir / to / "model.safetensors");
    change({reinterpret_cast<uint8_t*>(bytes.data()) + at.begin, static_cast<size_t>(at.bytes)});
    std::ofstream(dir / to / "model.safetensors", std::ios::binary) << bytes;
  }
};

TEST_F(Certify, ACheckpointThatIsTooFarFailsInEveryDomainByName) {
  done("quantize 'rtn int4 g128' " + kDemo + " out --device cpu");
  const ProcessResult r =
      run("evaluate certify " + kDemo + " out --max-kl-domain 0.001 --card --html page.html --json - --device cpu");
  EXPECT_EQ(r.exit_code, 1) << r.err;
  const Json c = json_of(r);
  EXPECT_FALSE(c["passed"].get<bool>());
  ASSERT_GT(c["domains"].size(), 1u);
  for (const Json& domain : c["domains"])
    EXPECT_NE(r.err.find(domain["name"].get<std::string>()), std::string::npos) << domain["name"] << "\n" << r.err;
  for (const Json& failure : c["failures"])
    EXPECT_NE(r.err.find("\n  " + failure.get<std::string>()), std::string::npos) << failure << "\n" << r.err;
  EXPECT_TRUE(std::filesystem::exists(dir / "page.html"));
  // The card that it wrote is part of what verify expects.
  EXPECT_NE(bytes_of_file(dir / "out/README.md").find("## Certificate"), std::string::npos);
  const ProcessResult v = run("evaluate verify out --device cpu");
  EXPECT_EQ(v.exit_code, 0) << v.err;
  EXPECT_EQ(v.out.find("warning"), std::string::npos) << v.out;
  std::ofstream(dir / "out/certificate.json", std::ios::app) << " ";
  EXPECT_EQ(run("evaluate verify out --device cpu").exit_code, 1) << "a certificate that was edited";
}

// int4 within the limits; int3 and a damaged copy of it beyond them, each with the domains and the places in them.
TEST_F(Certify, LimitsPartInt4FromInt3AndFromADamagedCopyAndSayWhere) {
  const std::string limits = " --max-kl 0.2 --max-kl-domain 0.22 --device cpu --json -";
  done("quantize 'rtn int4 g128' " + kDemo + " int4 --device cpu");
  done("quantize 'rtn int3 g128' " + kDemo + " int3 --device cpu");
  const Json vocabulary = Json::parse(bytes_of_file(kDemo + "/tokenizer.json"))["model"]["vocab"];
  // The embeddings of the digits with their signs turned: a damage that only some kinds of text can see.
  damage("int4", "digits", "model.embed_tokens.weight", [&](std::span<uint8_t> bytes) {
    const size_t row =
        sizeof(uint16_t) * Json::parse(bytes_of_file(kDemo + "/config.json"))["hidden_size"].get<size_t>();
    for (char digit = '0'; digit <= '9'; ++digit)
      for (size_t i = 1, at = row * vocabulary[std::string(1, digit)].get<size_t>(); i < row; i += 2)
        bytes[at + i] ^= 0x80;
  });
  const ProcessResult int4 = run("evaluate certify " + kDemo + " int4" + limits);
  EXPECT_EQ(int4.exit_code, 0) << int4.err;
  EXPECT_TRUE(json_of(int4)["failures"].empty());
  const ProcessResult int3 = run("evaluate certify " + kDemo + " int3" + limits);
  EXPECT_EQ(int3.exit_code, 1);
  EXPECT_NE(int3.err.find("mean over all domains"), std::string::npos) << int3.err;
  EXPECT_NE(int3.err.find("  languages: KL "), std::string::npos) << int3.err;
  EXPECT_NE(int3.err.find("; worst where \""), std::string::npos) << int3.err;
  const ProcessResult digits = run("evaluate certify " + kDemo + " digits" + limits);
  EXPECT_EQ(digits.exit_code, 1);
  EXPECT_NE(digits.err.find("the farthest is mathematics"), std::string::npos) << digits.err;
  EXPECT_EQ(digits.err.find("  prose: "), std::string::npos) << digits.err;
  const size_t domain = digits.err.find("  mathematics: KL "), place = digits.err.find("; worst where \"", domain);
  ASSERT_NE(place, std::string::npos) << digits.err;
  EXPECT_TRUE(std::isdigit(static_cast<unsigned char>(digits.err[place + sizeof("; worst where \"") - 1])))
      << digits.err;
}

TEST_F(Certify, FilesThatCannotBeWrittenAreRefusedBeforeTheWork) {
  for (const std::string flag : {"--html", "--markdown"}) {
    const ProcessResult r = run("evaluate certify nowhere out " + flag + " no/folder/x --device cpu");
    EXPECT_EQ(r.exit_code, 2) << r.err;
    EXPECT_NE(r.err.find("no/folder/x: cannot be written"), std::string::npos) << r.err;
  }
}

}  // namespace
}  // namespace fewbit::test
