/* libec_fieldstone.so: the erasure codes of Fieldstone in the daemons of Ceph.
 *
 * This file only translates. Ceph's side has sets, maps and buffer lists; the coder's side
 * (coder.h, written in Rust) has arrays of numbers and of contiguous memory. All decisions, all
 * checks of lengths and all arithmetic are on that side. What is here:
 *
 *   - buffers: a data chunk stays where it is in the object, without a copy, if it is contiguous
 *     there; coding chunks and restored chunks get memory of their own;
 *   - errors: no exception leaves a function. An error is returned, and if data could not be coded,
 *     its message is written to stderr. What is wrong with a profile, the monitor tells the user.
 *
 * FIELDSTONE_CEPH_VERSION is the text of `ceph --version`, for example "16.2.15". Ceph compares it
 * with its own, and loads no plug-in of another version. FIELDSTONE_CEPH_MAJOR is its first
 * number. */
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <new>

#include "ceph_abi.h"
#include "coder.h"

#if FIELDSTONE_CEPH_MAJOR < 16 || FIELDSTONE_CEPH_MAJOR > 18
#error "The plug-in is for Ceph 16 to 18: later releases have other classes than ceph_abi.h."
#endif

namespace {

namespace buffer = ceph::buffer;
using Chunks = std::map<int, buffer::list>;

/* The most chunks of a code, as in the coder. */
constexpr unsigned MAX_CHUNKS = 255;
/* Chunks begin at lines of the cache: the widest loads and stores of the coder are so long. */
constexpr unsigned ALIGN_BYTES = 64;
/* Pools with erasure codes have this number in the CRUSH map. */
constexpr int POOL_TYPE_ERASURE = 3;
/* In Ceph 16, a rule that a plug-in makes serves pools of at most 20 chunks. In 18, rules have no
 * such bound. */
constexpr unsigned MOST_CHUNKS = FIELDSTONE_CEPH_MAJOR < 18 ? 20 : MAX_CHUNKS;

/* Runs the body of a call; every error becomes a number, and a line on stderr if `what` names the
 * call. Calls whose errors are answers have no name: the OSD asks in order to find out. */
template <typename Body> int guarded(const char *what, Body body) noexcept {
  fieldstone_ec_error error = {0, ""};
  int status = -EIO;
  const char *message = "an unknown exception";
  try {
    status = body(&error);
    message = error.message;
  } catch (const std::bad_alloc &) {
    status = -ENOMEM;
    message = "no memory";
  } catch (const std::exception &exception) {
    snprintf(error.message, sizeof error.message, "%s", exception.what());
    message = error.message;
  } catch (...) {
  }
  if (status < 0 && what != nullptr)
    fprintf(stderr, "libec_fieldstone: %s: %s (error %d)\n", what, message, status);
  return status;
}

int refuse(fieldstone_ec_error *error, int status, const char *message) {
  snprintf(error->message, sizeof error->message, "%s", message);
  return status;
}

/* Memory for a chunk, in a list that has nothing else. */
fieldstone_ec_buffer make_chunk(buffer::list &list, unsigned bytes) {
  buffer::ptr memory(buffer::create_aligned(bytes, ALIGN_BYTES));
  auto *data = reinterpret_cast<uint8_t *>(memory.c_str());
  list.clear();
  list.push_back(std::move(memory));
  return {data, bytes};
}

/* The bytes of a list. `copy` keeps them together if the list has them in pieces. */
fieldstone_ec_buffer contiguous(const buffer::list &list, buffer::list &copy) {
  const buffer::list *from = &list;
  if (!list.is_contiguous()) {
    copy = list;
    copy.rebuild();
    from = &copy;
  }
  const char *data = from->length() > 0 ? from->front().c_str() : "";
  return {reinterpret_cast<uint8_t *>(const_cast<char *>(data)), list.length()};
}

class Code final : public ceph::ErasureCodeInterface {
public:
  ~Code() override { fieldstone_ec_free(handle); }

  int init(ceph::ErasureCodeProfile &given, std::ostream *stream) override {
    return guarded(nullptr, [&](fieldstone_ec_error *error) {
      std::vector<fieldstone_ec_pair> pairs;
      for (const auto &[key, value] : given)
        pairs.push_back({{key.data(), key.size()}, {value.data(), value.size()}});
      fieldstone_ec *made = nullptr;
      int status = fieldstone_ec_new(pairs.data(), pairs.size(), MOST_CHUNKS, &made, error);
      if (status != 0) {
        if (stream != nullptr)
          *stream << error->message << std::endl;
        return status;
      }
      fieldstone_ec_free(handle);
      handle = made;
      k = fieldstone_ec_k(handle);
      chunks = k + fieldstone_ec_m(handle);
      fieldstone_ec_pair pair;
      for (size_t at = 0; fieldstone_ec_default(handle, at, &pair); at++)
        given[std::string(pair.key.data, pair.key.len_bytes)] =
            std::string(pair.value.data, pair.value.len_bytes);
      profile = given;
      return 0;
    });
  }

  const ceph::ErasureCodeProfile &get_profile() const override { return profile; }

  int create_rule(const std::string &name, CrushWrapper &crush,
                  std::ostream *stream) const override {
    return guarded("rule", [&](fieldstone_ec_error *) {
      return crush.add_simple_rule(name, value("crush-root"), value("crush-failure-domain"),
                                   value("crush-device-class"), "indep", POOL_TYPE_ERASURE,
                                   stream);
    });
  }

  unsigned int get_chunk_count() const override { return chunks; }
  unsigned int get_data_chunk_count() const override { return k; }
  unsigned int get_coding_chunk_count() const override { return chunks - k; }
  int get_sub_chunk_count() override { return static_cast<int>(fieldstone_ec_sub_chunks(handle)); }

  unsigned int get_chunk_size(unsigned int object_bytes) const override {
    return fieldstone_ec_chunk_bytes(handle, object_bytes);
  }

  int minimum_to_decode(const std::set<int> &wanted, const std::set<int> &available,
                        std::map<int, ceph::SubChunkRanges> *minimum) override {
    return guarded(nullptr, [&](fieldstone_ec_error *error) {
      std::vector<uint32_t> order(available.begin(), available.end());
      std::vector<fieldstone_ec_read> reads;
      int status = ask(wanted, order, reads, error);
      for (const auto &read : reads)
        (*minimum)[static_cast<int>(read.chunk)].emplace_back(read.first, read.count);
      return status;
    });
  }

  int minimum_to_decode_with_cost(const std::set<int> &wanted, const std::map<int, int> &available,
                                  std::set<int> *minimum) override {
    return guarded(nullptr, [&](fieldstone_ec_error *error) {
      std::multimap<int, uint32_t> by_cost;
      for (const auto &[chunk, cost] : available)
        by_cost.emplace(cost, static_cast<uint32_t>(chunk));
      std::vector<uint32_t> order;
      for (const auto &entry : by_cost)
        order.push_back(entry.second);
      std::vector<fieldstone_ec_read> reads;
      int status = ask(wanted, order, reads, error);
      for (const auto &read : reads)
        minimum->insert(static_cast<int>(read.chunk));
      return status;
    });
  }

  int encode(const std::set<int> &wanted, const buffer::list &object, Chunks *encoded) override {
    return guarded("encode", [&](fieldstone_ec_error *error) {
      for (int chunk : wanted)
        if (chunk < 0 || static_cast<unsigned>(chunk) >= chunks)
          return refuse(error, -EINVAL, "a wanted chunk is not in the code");
      const unsigned bytes = get_chunk_size(object.length());
      std::vector<buffer::list> made(chunks);
      fieldstone_ec_buffer buffers[MAX_CHUNKS];
      for (unsigned at = 0; at < k; at++)
        buffers[at] = data_chunk(object, at, bytes, made[at]);
      for (unsigned at = k; at < chunks; at++)
        buffers[at] = make_chunk(made[at], bytes);
      if (int status = fieldstone_ec_encode(handle, buffers, chunks, error); status != 0)
        return status;
      for (int chunk : wanted)
        (*encoded)[chunk] = std::move(made[chunk]);
      return 0;
    });
  }

  /* All k + m chunks are in `encoded`, and the coding chunks are overwritten. */
  int encode_chunks(const std::set<int> &, Chunks *encoded) override {
    return guarded("encode", [&](fieldstone_ec_error *error) {
      fieldstone_ec_buffer buffers[MAX_CHUNKS];
      for (unsigned at = 0; at < chunks; at++) {
        auto chunk = encoded->find(static_cast<int>(at));
        if (chunk == encoded->end())
          return refuse(error, -EINVAL, "a chunk has no buffer");
        buffers[at] = {reinterpret_cast<uint8_t *>(chunk->second.c_str()), chunk->second.length()};
      }
      return fieldstone_ec_encode(handle, buffers, chunks, error);
    });
  }

  int decode(const std::set<int> &wanted, const Chunks &given, Chunks *decoded,
             int chunk_bytes) override {
    return guarded("decode", [&](fieldstone_ec_error *error) {
      return decode_into(wanted, given, decoded, chunk_bytes, error);
    });
  }

  /* `decoded` has a buffer for every chunk that is to be restored. */
  int decode_chunks(const std::set<int> &, const Chunks &given, Chunks *decoded) override {
    return guarded("decode", [&](fieldstone_ec_error *error) {
      fieldstone_ec_buffer from[MAX_CHUNKS], to[MAX_CHUNKS];
      std::vector<buffer::list> copies(chunks);
      if (int status = gather(given, from, copies, error); status != 0)
        return status;
      for (unsigned at = 0; at < chunks; at++) {
        auto chunk = decoded->find(static_cast<int>(at));
        to[at] = {nullptr, 0};
        if (from[at].data == nullptr && chunk != decoded->end())
          to[at] = {reinterpret_cast<uint8_t *>(chunk->second.c_str()), chunk->second.length()};
      }
      return fieldstone_ec_decode(handle, from, to, chunks, error);
    });
  }

  const std::vector<int> &get_chunk_mapping() const override { return mapping; }

  int decode_concat(const Chunks &given, buffer::list *decoded) override {
    return guarded("decode", [&](fieldstone_ec_error *error) {
      std::set<int> wanted;
      for (unsigned at = 0; at < k; at++)
        wanted.insert(static_cast<int>(at));
      Chunks found;
      if (int status = decode_into(wanted, given, &found, 0, error); status != 0)
        return status;
      for (unsigned at = 0; at < k; at++)
        decoded->claim_append(found[static_cast<int>(at)]);
      return 0;
    });
  }

private:
  std::string value(const char *key) const {
    auto found = profile.find(key);
    return found == profile.end() ? std::string() : found->second;
  }

  int ask(const std::set<int> &wanted, const std::vector<uint32_t> &available,
          std::vector<fieldstone_ec_read> &reads, fieldstone_ec_error *error) const {
    const std::vector<uint32_t> numbers(wanted.begin(), wanted.end());
    size_t count = chunks;
    int status = -ERANGE;
    /* Repairs from parts have more ranges than there are chunks: ask again with more room. */
    for (int turn = 0; turn < 2 && status == -ERANGE; turn++) {
      reads.resize(count);
      status = fieldstone_ec_minimum(handle, numbers.data(), numbers.size(), available.data(),
                                     available.size(), reads.data(), reads.size(), &count, error);
    }
    reads.resize(status == 0 ? count : 0);
    return status;
  }

  /* Data chunk `at` of an object: a part of its memory, or a copy filled up with zeros. */
  static fieldstone_ec_buffer data_chunk(const buffer::list &object, unsigned at, unsigned bytes,
                                         buffer::list &chunk) {
    const uint64_t start = static_cast<uint64_t>(at) * bytes;
    const uint64_t left = start < object.length() ? object.length() - start : 0;
    if (left >= bytes) {
      chunk.substr_of(object, static_cast<unsigned>(start), bytes);
      if (!chunk.is_contiguous())
        chunk.rebuild();
      return contiguous(chunk, chunk);
    }
    fieldstone_ec_buffer made = make_chunk(chunk, bytes);
    if (left > 0)
      object.begin(static_cast<unsigned>(start))
          .copy(static_cast<unsigned>(left), reinterpret_cast<char *>(made.data));
    memset(made.data + left, 0, bytes - left);
    return made;
  }

  /* The memory of the chunks that are given. */
  int gather(const Chunks &given, fieldstone_ec_buffer *from,
             std::vector<buffer::list> &copies, fieldstone_ec_error *error) const {
    for (unsigned at = 0; at < chunks; at++)
      from[at] = {nullptr, 0};
    for (const auto &[chunk, list] : given) {
      if (chunk < 0 || static_cast<unsigned>(chunk) >= chunks)
        return refuse(error, -EINVAL, "a given chunk is not in the code");
      from[chunk] = contiguous(list, copies[chunk]);
    }
    return 0;
  }

  /* Decodes into lists that are made here. Parts of chunks are given if they are shorter than
   * `chunk_bytes`; otherwise a restored chunk is as long as those that are given. */
  int decode_into(const std::set<int> &wanted, const Chunks &given, Chunks *decoded,
                  int chunk_bytes, fieldstone_ec_error *error) const {
    if (given.empty())
      return refuse(error, -EIO, "no chunk is given");
    unsigned bytes = given.begin()->second.length();
    const bool parts = chunk_bytes > 0 && static_cast<unsigned>(chunk_bytes) > bytes;
    if (parts)
      bytes = static_cast<unsigned>(chunk_bytes);
    fieldstone_ec_buffer from[MAX_CHUNKS], to[MAX_CHUNKS];
    for (unsigned at = 0; at < chunks; at++)
      to[at] = {nullptr, 0};
    std::vector<buffer::list> copies(chunks);
    bool lost = false;
    for (int chunk : wanted) {
      if (chunk < 0 || static_cast<unsigned>(chunk) >= chunks)
        return refuse(error, -EINVAL, "a wanted chunk is not in the code");
      auto there = given.find(chunk);
      if (there == given.end()) {
        to[chunk] = make_chunk((*decoded)[chunk], bytes);
        lost = true;
        continue;
      }
      if (there->second.length() != bytes)
        return refuse(error, -EINVAL, "a wanted chunk is given, but not with its whole length");
      (*decoded)[chunk] = there->second;
    }
    if (!lost)
      return 0;
    if (int status = gather(given, from, copies, error); status != 0)
      return status;
    return fieldstone_ec_decode(handle, from, to, chunks, error);
  }

  fieldstone_ec *handle = nullptr;
  unsigned k = 0;
  unsigned chunks = 0;
  ceph::ErasureCodeProfile profile;
  /* Empty: chunk i of the code is chunk i of the pool. */
  std::vector<int> mapping;
};

class Plugin final : public ceph::ErasureCodePlugin {
public:
  int factory(const std::string &, ceph::ErasureCodeProfile &profile,
              ceph::ErasureCodeInterfaceRef *code, std::ostream *stream) override {
    return guarded(nullptr, [&](fieldstone_ec_error *) {
      auto made = std::make_shared<Code>();
      int status = made->init(profile, stream);
      if (status == 0)
        *code = std::move(made);
      return status;
    });
  }
};

} // namespace

extern "C" {

__attribute__((visibility("default"))) const char *__erasure_code_version() {
  return FIELDSTONE_CEPH_VERSION;
}

__attribute__((visibility("default"))) int __erasure_code_init(char *name, char *) {
  return guarded("load", [&](fieldstone_ec_error *error) {
    auto plugin = std::make_unique<Plugin>();
    int status = ceph::ErasureCodePluginRegistry::singleton.add(name, plugin.get());
    if (status != 0)
      return refuse(error, status, "the daemon has a plug-in of this name already");
    plugin.release();
    return 0;
  });
}
}
