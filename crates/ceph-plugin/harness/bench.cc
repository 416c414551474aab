/* bench FOLDER OWN_FOLDER [ROUNDS]: the rate of encoding and of restoring one data chunk, of our
 * plug-in and of Ceph's, through the interface that the OSD uses, one thread.
 *
 * In each round, every contender works for some milliseconds of CPU time, and another one begins.
 * Objects are contiguous, and change from call to call. One JSON line for each row: the median over
 * the rounds of the data bytes per second of CPU time, and the median of the ratios of each round
 * to Ceph's plug-in. */
#include <algorithm>
#include <ctime>
#include <iostream>
#include <unistd.h>

#include "host.h"

struct Contender {
  const char *name;
  const char *words;
  /* The contender of the same round that this one is compared with. */
  const char *peer;
};

/* The words of jerasure, isa and clay are those of their users; all make k + m chunks. */
static const Contender CONTENDERS[] = {
    {"jerasure reed_sol_van", "plugin=jerasure technique=reed_sol_van", "jerasure reed_sol_van"},
    {"isa reed_sol_van", "plugin=isa technique=reed_sol_van", "isa reed_sol_van"},
    {"clay", "plugin=clay", "clay"},
    {"fieldstone reed_sol_van", "plugin=fieldstone technique=reed_sol_van",
     "jerasure reed_sol_van"},
    {"fieldstone reed_sol_van, matrix=isa",
     "plugin=fieldstone technique=reed_sol_van matrix=isa", "isa reed_sol_van"},
    {"fieldstone clay", "plugin=fieldstone technique=clay", "clay"},
    {"fieldstone zigzag", "plugin=fieldstone technique=zigzag", "isa reed_sol_van"},
};
static constexpr size_t COUNT = sizeof CONTENDERS / sizeof *CONTENDERS;
/* Objects that take turns. */
static constexpr unsigned OBJECTS = 8;
static constexpr double SLICE_SECONDS = 0.004;

/* CPU time of this thread, in seconds: what other programs take meanwhile does not count. */
static double now() {
  timespec time;
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}

struct Work {
  Code code;
  std::set<int> all;
  std::vector<List> objects;
  std::vector<Chunks> stripes;

  /* Bytes of data per second of CPU time. */
  double rate(bool decode) {
    const double start = now();
    double end = start;
    unsigned calls = 0;
    while (end - start < SLICE_SECONDS || calls < 2) {
      for (unsigned turn = 0; turn < 4; turn++, calls++) {
        Chunks out;
        const unsigned at = calls % OBJECTS;
        const int status = decode ? code->decode({0}, stripes[at], &out, 0)
                                  : code->encode(all, objects[at], &out);
        if (status != 0)
          fail("a call fails");
      }
      end = now();
    }
    return static_cast<double>(calls) * objects[0].length() / (end - start);
  }
};

static double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

static void rows(const std::string &ceph, const std::string &own, unsigned rounds, unsigned k,
                 unsigned m, unsigned bytes, bool decode, Random &random) {
  std::map<std::string, size_t> index;
  std::vector<Work> works(COUNT);
  const std::string size = " k=" + std::to_string(k) + " m=" + std::to_string(m);
  for (size_t at = 0; at < COUNT; at++) {
    const Contender &contender = CONTENDERS[at];
    index[contender.name] = at;
    Work &work = works[at];
    const bool ours = std::string(contender.name).find("fieldstone") == 0;
    work.code = make(ours ? own : ceph, contender.words + size);
    for (unsigned chunk = 0; chunk < k + m; chunk++)
      work.all.insert(static_cast<int>(chunk));
    for (unsigned object = 0; object < OBJECTS; object++) {
      work.objects.push_back(random.list(bytes, 1));
      Chunks stripe;
      if (work.code->encode(work.all, work.objects.back(), &stripe) != 0)
        fail("encode fails");
      stripe.erase(0);
      work.stripes.push_back(stripe);
    }
  }
  std::vector<std::vector<double>> rates(COUNT), ratios(COUNT);
  for (unsigned round = 0; round < rounds; round++) {
    for (size_t turn = 0; turn < COUNT; turn++) {
      const size_t at = (turn + round) % COUNT;
      rates[at].push_back(works[at].rate(decode));
    }
    for (size_t at = 0; at < COUNT; at++)
      ratios[at].push_back(rates[at][round] / rates[index[CONTENDERS[at].peer]][round]);
  }
  for (size_t at = 0; at < COUNT; at++) {
    char line[400];
    snprintf(line, sizeof line,
             "{\"call\":\"%s\",\"k\":%u,\"m\":%u,\"stripe_bytes\":%u,\"plugin\":\"%s\","
             "\"gb_per_s\":%.2f,\"peer\":\"%s\",\"ratio\":%.2f,\"rounds\":%u}",
             decode ? "decode" : "encode", k, m, bytes, CONTENDERS[at].name,
             median(rates[at]) / 1e9, CONTENDERS[at].peer, median(ratios[at]), rounds);
    std::cout << line << std::endl;
  }
}

int main(int count, char **arguments) {
  if (count < 3 || count > 4)
    fail("usage: bench FOLDER OWN_FOLDER [ROUNDS]");
  const unsigned rounds = count == 4 ? static_cast<unsigned>(atoi(arguments[3])) : 41;
  start_ceph();
  Random random{1};
  for (auto [k, m] : {std::pair<unsigned, unsigned>{4, 2}, {8, 3}})
    for (unsigned bytes : {4096u, k * 4096, 65'536u, 1'048'576u})
      for (bool decode : {false, true})
        rows(arguments[1], arguments[2], rounds, k, m, bytes, decode, random);
  _exit(0);
}
