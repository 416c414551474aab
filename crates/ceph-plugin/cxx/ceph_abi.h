/* The classes of Ceph that a plug-in for erasure codes meets, declared for linking only.
 *
 * Ceph does not install the headers of these classes. What a plug-in must agree on with the daemon
 * is the order of the virtual functions, the types of their arguments, and the position of one data
 * member. The facts here are those of Ceph 16 (Pacific) to 18 (Reef), where the order is the same.
 * Buffer lists are in <rados/buffer.h>, which Ceph installs (package libradospp-dev).
 *
 * Nothing here has a body: the daemon has the code, and exports the symbols. */
#ifndef FIELDSTONE_CEPH_ABI_H
#define FIELDSTONE_CEPH_ABI_H

#include <map>
#include <memory>
#include <ostream>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <rados/buffer.h>

/* The CRUSH map of a monitor. A plug-in adds the rule of a new pool. */
class CrushWrapper {
public:
  int add_simple_rule(std::string name, std::string root, std::string failure_domain,
                      std::string device_class, std::string mode, int pool_type,
                      std::ostream *error);
};

namespace ceph {

using ErasureCodeProfile = std::map<std::string, std::string>;
/* Ranges of sub-chunks, as first and count. */
using SubChunkRanges = std::vector<std::pair<int, int>>;

class ErasureCodeInterface {
public:
  virtual ~ErasureCodeInterface() {}
  virtual int init(ErasureCodeProfile &profile, std::ostream *error) = 0;
  virtual const ErasureCodeProfile &get_profile() const = 0;
  virtual int create_rule(const std::string &name, CrushWrapper &crush,
                          std::ostream *error) const = 0;
  virtual unsigned int get_chunk_count() const = 0;
  virtual unsigned int get_data_chunk_count() const = 0;
  virtual unsigned int get_coding_chunk_count() const = 0;
  virtual int get_sub_chunk_count() = 0;
  virtual unsigned int get_chunk_size(unsigned int object_bytes) const = 0;
  virtual int minimum_to_decode(const std::set<int> &wanted, const std::set<int> &available,
                                std::map<int, SubChunkRanges> *minimum) = 0;
  virtual int minimum_to_decode_with_cost(const std::set<int> &wanted,
                                          const std::map<int, int> &available,
                                          std::set<int> *minimum) = 0;
  virtual int encode(const std::set<int> &wanted, const buffer::list &object,
                     std::map<int, buffer::list> *encoded) = 0;
  virtual int encode_chunks(const std::set<int> &wanted,
                            std::map<int, buffer::list> *encoded) = 0;
  virtual int decode(const std::set<int> &wanted, const std::map<int, buffer::list> &chunks,
                     std::map<int, buffer::list> *decoded, int chunk_bytes) = 0;
  virtual int decode_chunks(const std::set<int> &wanted, const std::map<int, buffer::list> &chunks,
                            std::map<int, buffer::list> *decoded) = 0;
  virtual const std::vector<int> &get_chunk_mapping() const = 0;
  virtual int decode_concat(const std::map<int, buffer::list> &chunks, buffer::list *decoded) = 0;
};

using ErasureCodeInterfaceRef = std::shared_ptr<ErasureCodeInterface>;

class ErasureCodePlugin {
public:
  /* The daemon keeps the handle of dlopen here. */
  void *library = nullptr;
  virtual ~ErasureCodePlugin() {}
  virtual int factory(const std::string &directory, ErasureCodeProfile &profile,
                      ErasureCodeInterfaceRef *code, std::ostream *error) = 0;
};

class ErasureCodePluginRegistry {
public:
  static ErasureCodePluginRegistry singleton;
  int add(const std::string &name, ErasureCodePlugin *plugin);
  /* Not used by this plug-in; that of Ceph's Clay makes the code inside it with this. */
  int factory(const std::string &name, const std::string &directory, ErasureCodeProfile &profile,
              ErasureCodeInterfaceRef *code, std::ostream *error);
};

} // namespace ceph

#endif
