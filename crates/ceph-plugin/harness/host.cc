#include "host.h"

#include <cstdlib>
#include <cstring>
#include <dlfcn.h>
#include <iostream>
#include <unistd.h>

#include <rados/librados.h>

class CephContext;
namespace ceph::global {
extern CephContext *g_ceph_context;
}

namespace ceph {

/* The names of the daemon's registry. The plug-in `clay` calls factory for the code inside it. */
class Registry {
public:
  std::map<std::string, ErasureCodePlugin *> plugins;
};
static Registry registry;

ErasureCodePluginRegistry ErasureCodePluginRegistry::singleton;

int ErasureCodePluginRegistry::add(const std::string &name, ErasureCodePlugin *plugin) {
  return registry.plugins.emplace(name, plugin).second ? 0 : -EEXIST;
}

int ErasureCodePluginRegistry::factory(const std::string &name, const std::string &folder,
                                       ErasureCodeProfile &profile, ErasureCodeInterfaceRef *code,
                                       std::ostream *stream) {
  auto *plugin = load(folder + "/libec_" + name + ".so", name);
  int status = plugin->factory(folder, profile, code, stream);
  /* The daemon insists on this. */
  if (status == 0 && profile != (*code)->get_profile())
    fail(name + " has another profile than it was made with");
  return status;
}

} // namespace ceph

void fail(const std::string &message) {
  std::cerr << "failed: " << message << std::endl;
  _exit(1);
}

void start_ceph() {
  rados_t cluster;
  if (rados_create(&cluster, "admin") != 0)
    fail("librados makes no context");
  ceph::global::g_ceph_context = static_cast<CephContext *>(rados_cct(cluster));
}

Profile profile_of(const std::string &words) {
  Profile profile;
  std::istringstream stream(words);
  for (std::string word; stream >> word;) {
    size_t at = word.find('=');
    profile[word.substr(0, at)] = word.substr(at + 1);
  }
  return profile;
}

ceph::ErasureCodePlugin *load(const std::string &file, const std::string &name) {
  auto known = ceph::registry.plugins.find(name);
  if (known != ceph::registry.plugins.end())
    return known->second;
  void *library = dlopen(file.c_str(), RTLD_NOW);
  if (library == nullptr)
    fail(dlerror());
  auto version = reinterpret_cast<const char *(*)()>(dlsym(library, "__erasure_code_version"));
  auto init = reinterpret_cast<int (*)(const char *, const char *)>(
      dlsym(library, "__erasure_code_init"));
  if (version == nullptr || init == nullptr)
    fail(file + " has no entry points");
  if (strcmp(version(), FIELDSTONE_CEPH_VERSION) != 0)
    fail(file + " is for Ceph " + version());
  if (init(name.c_str(), "") != 0 || ceph::registry.plugins.count(name) == 0)
    fail(file + " did not register itself");
  return ceph::registry.plugins[name];
}

Code make(const std::string &folder, const std::string &words, std::string *message) {
  Profile profile = profile_of(words);
  std::ostringstream stream;
  Code code;
  int status = ceph::ErasureCodePluginRegistry::singleton.factory(profile["plugin"], folder,
                                                                  profile, &code, &stream);
  if (message != nullptr)
    *message = stream.str();
  else if (status != 0)
    fail(words + ": " + stream.str());
  return status == 0 ? code : Code();
}

uint64_t Random::next() {
  state += 0x9e3779b97f4a7c15;
  uint64_t mixed = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9;
  mixed = (mixed ^ (mixed >> 27)) * 0x94d049bb133111eb;
  return mixed ^ (mixed >> 31);
}

List Random::list(unsigned bytes, unsigned pieces) {
  List list;
  while (bytes > 0) {
    unsigned length = pieces > 1 ? 1 + next() % bytes : bytes;
    pieces = pieces > 1 ? pieces - 1 : 1;
    auto memory = ceph::buffer::create_aligned(length, 4096);
    ceph::buffer::ptr part(std::move(memory));
    for (unsigned at = 0; at < length; at++)
      part.c_str()[at] = static_cast<char>(next());
    list.push_back(std::move(part));
    bytes -= length;
  }
  return list;
}

std::string text(const List &list) {
  std::string bytes(list.length(), '\0');
  if (!bytes.empty())
    list.begin().copy(list.length(), bytes.data());
  return bytes;
}
