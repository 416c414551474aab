/* Loads plug-ins for erasure codes as a daemon of Ceph does, outside of one.
 *
 * Ceph's own plug-ins expect symbols of the daemon: the registry, a context for their log, buffer
 * lists. The registry is here; the rest is in libceph-common, which this program links. */
#ifndef FIELDSTONE_HARNESS_HOST_H
#define FIELDSTONE_HARNESS_HOST_H

#include <map>
#include <sstream>
#include <string>

#include "../cxx/ceph_abi.h"

using Profile = ceph::ErasureCodeProfile;
using Code = ceph::ErasureCodeInterfaceRef;
using List = ceph::buffer::list;
using Chunks = std::map<int, List>;

/* Ends the program with a message. */
[[noreturn]] void fail(const std::string &message);

/* Starts Ceph's log, which the plug-ins of Ceph write to. */
void start_ceph();

/* A profile from words: "technique=zigzag k=4 m=2". */
Profile profile_of(const std::string &words);

/* The plug-in in a file, which is loaded once for each name. */
ceph::ErasureCodePlugin *load(const std::string &file, const std::string &name);

/* A code of the plug-in NAME in the folder, from words with plugin=NAME. An empty pointer and the
 * message if the plug-in refuses the profile. */
Code make(const std::string &folder, const std::string &words, std::string *message = nullptr);

/* A generator of bytes that is the same everywhere. */
struct Random {
  uint64_t state;
  uint64_t next();
  /* A list of so many random bytes, in at most so many pieces. */
  List list(unsigned bytes, unsigned pieces);
};

/* The bytes of a list. */
std::string text(const List &list);

#endif
