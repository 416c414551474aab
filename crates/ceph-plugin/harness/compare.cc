/* compare FOLDER OWN_FOLDER: our plug-in beside those of Ceph, through the interface that the OSD
 * uses. FOLDER has the plug-ins of Ceph. OWN_FOLDER has libec_fieldstone.so, also under the names
 * libec_jerasure.so, libec_isa.so and libec_clay.so.
 *
 * Ends with the line `N checks, no difference`, or at the first difference. */
#include <cstring>
#include <iostream>
#include <unistd.h>

#include "host.h"

static unsigned long checks = 0;

static void check(bool holds, const std::string &what) {
  if (!holds)
    fail(what);
  checks++;
}

static std::set<int> all_chunks(const Code &code) {
  std::set<int> chunks;
  for (unsigned at = 0; at < code->get_chunk_count(); at++)
    chunks.insert(static_cast<int>(at));
  return chunks;
}

static void same(const Chunks &a, const Chunks &b, const std::string &what) {
  check(a.size() == b.size(), what + ": another number of chunks");
  for (const auto &[chunk, list] : a)
    check(b.count(chunk) == 1 && text(b.at(chunk)) == text(list),
          what + ": chunk " + std::to_string(chunk) + " differs");
}

static Chunks encode(const Code &code, const List &object, const std::string &what) {
  Chunks encoded;
  check(code->encode(all_chunks(code), object, &encoded) == 0, what + ": encode fails");
  return encoded;
}

/* Restores the lost chunks as ECUtil of the OSD does: ask, read the ranges of every stripe, ask
 * again with what was read, decode stripe by stripe. Gives the bytes read. */
static size_t recover(const Code &code, const Chunks &stripe, const std::set<int> &lost,
                      const std::string &what) {
  std::set<int> available;
  for (const auto &entry : stripe)
    if (lost.count(entry.first) == 0)
      available.insert(entry.first);
  std::map<int, ceph::SubChunkRanges> reads, again;
  check(code->minimum_to_decode(lost, available, &reads) == 0, what + ": nothing to read");
  const unsigned chunk_bytes = stripe.begin()->second.length();
  const unsigned part_bytes = chunk_bytes / static_cast<unsigned>(code->get_sub_chunk_count());
  Chunks read;
  std::set<int> chunks;
  size_t bytes = 0;
  for (const auto &[chunk, ranges] : reads) {
    chunks.insert(chunk);
    for (const auto &[first, count] : ranges) {
      List part;
      part.substr_of(stripe.at(chunk), first * part_bytes, count * part_bytes);
      bytes += part.length();
      read[chunk].claim_append(part);
    }
    check(read[chunk].length() == read.begin()->second.length(), what + ": unequal reads");
  }
  check(code->minimum_to_decode(lost, chunks, &again) == 0 && reads == again,
        what + ": the second answer differs");
  Chunks decoded;
  check(code->decode(lost, read, &decoded, static_cast<int>(chunk_bytes)) == 0,
        what + ": decode fails");
  for (int chunk : lost)
    check(text(decoded[chunk]) == text(stripe.at(chunk)),
          what + ": chunk " + std::to_string(chunk) + " is restored wrong");
  return bytes;
}

/* Every loss of 1 to m chunks; of wide codes a sample. */
static void losses(const Code &code, const Chunks &stripe, const std::string &what) {
  const unsigned n = code->get_chunk_count(), m = code->get_coding_chunk_count();
  const unsigned step = n > 8 ? 13 : 1;
  for (unsigned set = 1; set < 1u << n; set += step) {
    if (static_cast<unsigned>(__builtin_popcount(set)) > m)
      continue;
    std::set<int> lost;
    Chunks left;
    for (unsigned at = 0; at < n; at++) {
      if (set >> at & 1)
        lost.insert(static_cast<int>(at));
      else
        left[static_cast<int>(at)] = stripe.at(static_cast<int>(at));
    }
    const std::string name = what + " without " + std::to_string(set);
    recover(code, stripe, lost, name);
    List object, expected;
    check(code->decode_concat(left, &object) == 0, name + ": decode_concat fails");
    for (unsigned at = 0; at < code->get_data_chunk_count(); at++)
      expected.append(stripe.at(static_cast<int>(at)));
    check(text(object) == text(expected), name + ": decode_concat differs");
    /* The call that Ceph's layered codes use: all buffers are there, the lost ones are filled. */
    Chunks buffers = left;
    for (int chunk : lost)
      buffers[chunk].append_zero(stripe.at(chunk).length());
    check(code->decode_chunks(lost, left, &buffers) == 0, name + ": decode_chunks fails");
    same(stripe, buffers, name + ": decode_chunks");
  }
}

/* Our code beside Ceph's, which `folder` and `words` make. */
static void pair(const Code &own, const std::string &folder, const std::string &words,
                 Random &random, const std::string &what) {
  Code other = make(folder, words);
  check(own->get_chunk_count() == other->get_chunk_count() &&
            own->get_data_chunk_count() == other->get_data_chunk_count() &&
            own->get_coding_chunk_count() == other->get_coding_chunk_count() &&
            own->get_sub_chunk_count() == other->get_sub_chunk_count() &&
            own->get_chunk_mapping() == other->get_chunk_mapping(),
        what + ": another number of chunks");
  /* With this option, Ceph's plug-in ends the program if an object is shorter than some chunks. */
  const bool long_only = what.find("per-chunk") != std::string::npos;
  const unsigned least = long_only ? 4096 : 0;
  for (unsigned bytes = least; bytes < 20'000'000; bytes = bytes * 5 / 3 + 1)
    check(own->get_chunk_size(bytes) == other->get_chunk_size(bytes),
          what + ": another length of chunks for " + std::to_string(bytes) + " bytes");
  for (int turn = 0; turn < 6; turn++) {
    const unsigned width = own->get_data_chunk_count() * 4096;
    const unsigned bytes = turn == 0 ? width : least + 1 + random.next() % (3 * width);
    const List object = random.list(bytes, turn < 3 ? 1 : 7);
    const Chunks stripe = encode(own, object, what);
    /* Ceph's Clay keeps buffers for the first chunk it has seen, and fails for longer ones. */
    other = make(folder, words);
    same(encode(other, object, what + " (Ceph)"), stripe, what);
    Chunks again = stripe;
    for (unsigned at = own->get_data_chunk_count(); at < own->get_chunk_count(); at++) {
      again[static_cast<int>(at)].clear();
      again[static_cast<int>(at)].append_zero(stripe.at(0).length());
    }
    check(own->encode_chunks(all_chunks(own), &again) == 0, what + ": encode_chunks fails");
    same(stripe, again, what + ": encode_chunks");
    if (turn == 0 || turn == 4)
      losses(own, stripe, what);
  }
}

/* Calls that no correct daemon makes: an error, and no harm. */
static void wrong_calls(const Code &code, Random &random) {
  const Chunks stripe = encode(code, random.list(65'536, 1), "wrong calls");
  Chunks out, left = stripe;
  List concat;
  left.erase(0);
  const int bytes = static_cast<int>(stripe.at(0).length());
  auto refused = [](int status, const char *what) { check(status < 0, what); };
  refused(code->encode({0, 99}, random.list(100, 1), &out), "encode of chunk 99");
  refused(code->encode({-1}, random.list(100, 1), &out), "encode of chunk -1");
  refused(code->encode_chunks({}, &left), "encode_chunks without a buffer");
  refused(code->decode({0}, {}, &out, bytes), "decode of nothing");
  refused(code->decode({77}, left, &out, bytes), "decode of chunk 77");
  refused(code->decode({-7}, left, &out, bytes), "decode of chunk -7");
  Chunks strange = left;
  strange[1000].append_zero(bytes);
  refused(code->decode({0}, strange, &out, bytes), "decode with chunk 1000");
  for (int change : {1, -1, 64}) {
    for (int chunk : {1, 2, 3}) {
      Chunks uneven = left;
      uneven[chunk].clear();
      uneven[chunk].append_zero(bytes + change);
      out.clear();
      refused(code->decode({0}, uneven, &out, bytes), "decode of uneven chunks");
      concat.clear();
      refused(code->decode_concat(uneven, &concat), "decode_concat of uneven chunks");
    }
  }
  Chunks few(left.begin(), std::next(left.begin(), code->get_data_chunk_count() - 1));
  refused(code->decode({0}, few, &out, bytes), "decode of too few chunks");
  Chunks odd = left;
  for (auto &entry : odd) {
    entry.second.clear();
    entry.second.append_zero(4097);
  }
  if (code->get_sub_chunk_count() > 1)
    refused(code->decode({0}, odd, &out, 4097), "decode of odd chunks");
  std::map<int, ceph::SubChunkRanges> reads;
  refused(code->minimum_to_decode({0}, {1}, &reads), "one chunk is enough");
  refused(code->minimum_to_decode({0}, {1, 2, 3, 4, 99}, &reads), "chunk 99 is available");
  refused(code->minimum_to_decode({-5}, {1, 2, 3, 4}, &reads), "chunk -5 is wanted");
  check(reads.empty(), "a refused question has an answer");
  out.clear();
  check(code->encode({0, 5}, List(), &out) == 0 && out.size() == 2 && out[5].length() == 0,
        "encode of an empty object");
  std::set<int> cheapest;
  check(code->minimum_to_decode_with_cost({0}, {{1, 9}, {2, 1}, {3, 1}, {4, 1}, {5, 1}},
                                          &cheapest) == 0,
        "costs");
  if (code->get_sub_chunk_count() == 1)
    check(cheapest == std::set<int>{2, 3, 4, 5}, "the expensive chunk is chosen");
}

static void refused_profiles(const std::string &folder) {
  for (const char *words : {"technique=raid5", "k=x", "k=1 m=1", "k=18 m=3", "elemnts=8",
                            "technique=zigzag m=7", "mapping=DD_"}) {
    std::string message;
    Code code = make(folder, std::string("plugin=fieldstone ") + words, &message);
    check(!code && message.size() > 20 && message.back() == '\n',
          std::string("accepted: ") + words);
    std::cout << message;
  }
}

int main(int count, char **arguments) {
  if (count != 3)
    fail("usage: compare FOLDER OWN_FOLDER");
  const std::string ceph = arguments[1], own = arguments[2];
  start_ceph();
  Random random{20261127};
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const char *km : {"k=2 m=1", "k=2 m=2", "k=4 m=2", "k=5 m=3", "k=8 m=3", "k=8 m=4"}) {
    const std::string size(km);
    for (const char *rest : {"", " w=16", " w=32", " jerasure-per-chunk-alignment=true"})
      pairs.emplace_back("technique=reed_sol_van " + size + rest,
                         "plugin=jerasure technique=reed_sol_van " + size + rest);
    for (const char *technique : {"cauchy_orig", "cauchy_good"}) {
      const std::string rest = std::string("technique=") + technique + " packetsize=32 " + size;
      pairs.emplace_back(rest, "plugin=jerasure " + rest);
    }
    if (size.find("m=2") != std::string::npos) {
      const std::string rest = "technique=reed_sol_r6_op " + size;
      pairs.emplace_back(rest, "plugin=jerasure " + rest);
    }
    for (const char *technique : {"reed_sol_van", "cauchy"}) {
      const std::string rest = std::string("technique=") + technique + " " + size;
      pairs.emplace_back("matrix=isa " + rest, "plugin=isa " + rest);
    }
    pairs.emplace_back("technique=clay " + size, "plugin=clay " + size);
    pairs.emplace_back("technique=clay scalar_mds=isa " + size,
                       "plugin=clay scalar_mds=isa technique=reed_sol_van " + size);
  }
  for (const auto &[mine, theirs] : pairs)
    pair(make(own, "plugin=fieldstone " + mine), ceph, theirs, random, mine);
  for (const char *zigzag : {"k=4 m=2", "k=6 m=3", "k=8 m=2 elements=8", "k=3 m=4"}) {
    const Code code = make(own, std::string("plugin=fieldstone technique=zigzag ") + zigzag);
    const unsigned width = code->get_data_chunk_count() * 4096;
    losses(code, encode(code, random.list(width, 1), zigzag), zigzag);
  }
  const Code clay = make(own, "plugin=fieldstone technique=clay");
  const Chunks stripe = encode(clay, random.list(16'384, 1), "clay");
  check(recover(clay, stripe, {2}, "clay") == 5 * 2048, "Clay reads half of five chunks");
  for (const char *technique : {"reed_sol_van", "zigzag", "clay", "cauchy_good packetsize=8"})
    wrong_calls(make(own, std::string("plugin=fieldstone technique=") + technique), random);
  refused_profiles(own);
  /* In the place of Ceph's plug-ins: the profile that the monitor stores is the same. */
  for (const auto &entry : pairs) {
    const std::string &words = entry.second;
    Profile profile = profile_of(words);
    auto *plugin = load(own + "/libec_" + profile["plugin"] + ".so", profile["plugin"] + " of ours");
    std::ostringstream stream;
    Code code;
    check(plugin->factory(own, profile, &code, &stream) == 0, words + stream.str());
    const List object = random.list(5000, 1);
    const Code theirs = make(ceph, words);
    same(encode(theirs, object, words), encode(code, object, words), words);
    for (const auto &[key, value] : theirs->get_profile())
      check(profile.count(key) == 1 && profile[key] == value,
            words + ": the profile has no " + key + "=" + value);
  }
  std::cout << checks << " checks, no difference" << std::endl;
  _exit(0);
}
