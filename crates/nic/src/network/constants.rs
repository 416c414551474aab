//! Every constant of the model, each with its source. No other file has one.
//!
//! The paper prints few of the numbers that its figures depend on. What it prints is
//! [`Origin::Paper`]. What follows from the SystemVerilog and the simulated ports of PsPIN
//! (github.com/spcl/pspin) is [`Origin::Rtl`]. The rest is either our choice ([`Origin::Ours`]), or
//! *fitted* to a statement of the paper ([`Origin::Fitted`]). A statement that a constant was
//! fitted to is no evidence for the model.
//!
//! There are five fitted constants. `post_ns` and `inject_ns` set the latency of a small write
//! (27 % over raw) and its distance to RDMA-Flat (27 %). `rpc_dispatch_ns` sets the cost of an RPC
//! (2x). `ec_operation_ns` and `ec_gbit` set the encoding bandwidth of INEC (29x and 3.3x).

/// Where a constant comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Printed in the paper, at this place.
    Paper(&'static str),
    /// PsPIN's sources, in this file.
    Rtl(&'static str),
    /// Our choice, for this reason.
    Ours(&'static str),
    /// Chosen so that the model meets this statement of the paper.
    Fitted(&'static str),
}

impl Origin {
    /// The kind, in a word.
    pub fn kind(self) -> &'static str {
        match self {
            Self::Paper(_) => "paper",
            Self::Rtl(_) => "PsPIN",
            Self::Ours(_) => "ours",
            Self::Fitted(_) => "fitted",
        }
    }

    /// The place, the reason or the statement.
    pub fn text(self) -> &'static str {
        match self {
            Self::Paper(text) | Self::Rtl(text) | Self::Ours(text) | Self::Fitted(text) => text,
        }
    }
}

/// A constant as a row of a table.
#[derive(Clone, Copy, Debug)]
pub struct ConstantRow {
    /// The name, with its unit.
    pub name: &'static str,
    /// The value.
    pub value: u64,
    /// The source.
    pub origin: Origin,
    /// What it is.
    pub about: &'static str,
}

macro_rules! constants {
    ($(#[doc = $doc:literal] $name:ident = $value:expr, $kind:ident $place:literal;)+) => {
        /// The constants. The name of each ends with its unit.
        #[derive(Clone, Debug, PartialEq, Eq)]
        pub struct Constants { $(#[doc = $doc] pub $name: u64,)+ }

        impl Default for Constants {
            fn default() -> Self {
                Self { $($name: $value,)+ }
            }
        }

        impl Constants {
            /// The constants as a table, in the order of this file.
            pub fn rows(&self) -> Vec<ConstantRow> {
                vec![$(ConstantRow {
                    name: stringify!($name),
                    value: self.$name,
                    origin: Origin::$kind($place),
                    about: $doc.trim_ascii(),
                },)+]
            }
        }
    };
}

constants! {
    /// Rate of every link, Gbit/s.
    link_gbit = 400, Paper "section III-D; 100 in section VI-C, Encoding latency";
    /// Latency of a link between a host and the switch.
    link_latency_ns = 20, Paper "section III-D";
    /// Largest packet, with its headers.
    mtu_bytes = 2048, Paper "section III-D";
    /// Headers of the network and of RDMA in every packet.
    packet_header_bytes = 32, Rtl "verilator_model/src/NICOutbound.hpp, RDMA_HEADER_LENGTH";
    /// DFS header and write request header, in the first packet of a write.
    dfs_header_bytes = 64, Ours "the paper prints no size; two words per replica and a capability";
    /// Data of an RPC's request without payload, and of its response.
    rpc_bytes = 64, Ours "a cache line";
    /// Buffer of a switch port per input, and of a NIC's receive side: the credits of a link.
    buffer_bytes = 65_536, Ours "many times what a link has in flight (2 KiB)";
    /// One way over PCIe.
    pcie_latency_ns = 200, Paper "half of the round trip of up to 400 ns in section III";
    /// Rate of PCIe, each way, Gbit/s.
    pcie_gbit = 541, Rtl "verilator_model, PCIe G of 0.014782 ns per byte";
    /// Bytes of a completion or a flush over PCIe.
    completion_bytes = 64, Ours "an entry of a completion queue";
    /// CPU time to post a request to the NIC.
    post_ns = 60, Fitted "Fig. 6: sPIN at most 27 % over raw writes";
    /// CPU time to see and take a completion.
    poll_ns = 100, Ours "one miss of the cache";
    /// NIC time per message sent: the gap between two messages.
    inject_ns = 240, Fitted "Fig. 9: RDMA-Flat up to 27 % faster than sPIN-Ring at 1 KiB, k = 2";
    /// NIC time to receive a packet.
    receive_ns = 50, Ours "PsPIN's inbound engine takes 32 ns for a full packet";
    /// Packets that a NIC reads from host memory ahead of the wire.
    fetch_packets = 32, Ours "more than PCIe has in flight in a round trip (27 KiB)";
    /// Time from a request in memory to the end of its dispatch in an RPC server.
    rpc_dispatch_ns = 1250, Fitted "abstract: writes up to 2x faster than RPC and RPC+RDMA";
    /// CPU time to check a capability.
    check_ns = 300, Ours "SipHash and a table lookup, without a hot cache";
    /// Rate of a copy in memory by one core, Gbit/s.
    copy_gbit = 100, Ours "12.5 GB/s, a core that copies from and to DRAM";
    /// Rate of CRC-32C by one core, Gbit/s. Of the product's node only.
    checksum_gbit = 80, Ours "an estimate: 0.1 ns per byte (crates/proto/src/wire/mod.rs)";
    /// Rate at which one core makes products of a data shard, Gbit/s. Of the product's node only.
    multiply_gbit = 80, Ours "an estimate: 10 GB/s with vectors and data in memory";
    /// Cores of a host. The work on a write stays on one core.
    cores = 16, Ours "enough that cores do not bound the latency of one write";
    /// Most pieces into which CPU and HyperLoop protocols cut a write.
    chunks = 64, Ours "a HyperLoop group posts its work ahead";
    /// Work-queue elements of one forwarded chunk, written by the client of HyperLoop.
    wqe_bytes = 192, Ours "three elements of 64 bytes: wait, write, acknowledge";
    /// PsPIN's clusters.
    clusters = 4, Paper "section II-B1";
    /// PsPIN's cores in a cluster (32 in all).
    hpus = 8, Paper "section II-B1";
    /// Packet buffer of PsPIN.
    packet_buffer_bytes = 4_194_304, Rtl "pspin_cfg_pkg.sv: 4 MiB beside the handlers' memory";
    /// Width of PsPIN's ports, bytes per cycle of 1 ns.
    port_bytes = 64, Paper "Fig. 7: 32 cycles for 2 KiB";
    /// From a packet's arrival in the buffer to its task in a cluster.
    schedule_ns = 2, Paper "Fig. 7";
    /// Latency of a copy from the packet buffer into a cluster's memory, before its 32 cycles.
    l1_copy_ns = 11, Paper "Fig. 7: 43 cycles for 2 KiB less 32 of the port";
    /// From a packet in a cluster's memory to its HPU.
    dispatch_ns = 1, Paper "Fig. 7";
    /// Tasks of a cluster, waiting and running.
    cluster_tasks = 20, Rtl "pkt_scheduler/scheduler.sv: 12 buffered and 8 running";
    /// Commands of an HPU in flight.
    hpu_commands = 4, Rtl "pkt_scheduler/hpu_driver.sv";
    /// Commands that the outbound engine takes: 16, and 32 packets behind them.
    outbound_packets = 48, Rtl "verilator_model/src/NICOutbound.hpp";
    /// Rate at which PsPIN sends, Gbit/s.
    egress_gbit = 400, Paper "section V-B4: \"egress network bandwidth is limited (400 Gbit/s)\"";
    /// An entry of the request table.
    request_bytes = 77, Paper "section III-B2";
    /// Memory of the request table.
    request_memory_bytes = 6_291_456, Paper "section III-B2: 6 MiB";
    /// Time after which a client repeats a denied write.
    retry_ns = 10_000, Ours "the paper: the client will retry later";
    /// Accumulators of a parity node, each as large as a packet.
    accumulators = 512, Ours "1 MiB of the 2 MiB for DFS-wide state; the paper prints no size";
    /// Time of one operation of INEC's coding engine, beside its bytes.
    ec_operation_ns = 3500, Fitted "Fig. 15: 29x at 1 KiB";
    /// Rate of INEC's coding engine over its input, Gbit/s.
    ec_gbit = 30, Fitted "Fig. 15: 3.3x at 512 KiB";
}

impl Constants {
    /// Data of a full packet.
    pub fn packet_payload_bytes(&self) -> u64 {
        self.mtu_bytes.saturating_sub(self.packet_header_bytes).max(1)
    }

    /// Entries of a request table: 81,707 in the paper's memory ("82 K").
    pub fn requests(&self) -> u64 {
        self.request_memory_bytes / self.request_bytes.max(1)
    }

    /// The paper's test bench of one PsPIN, from which its Tables I and II come: the ports of the
    /// simulator in place of a host and a network.
    ///
    /// The simulated outbound port waits `(uint32_t)(G * 64)` cycles per 64 bytes. At 400 Gbit/s
    /// that is 1.19, cut to 1, so the port sends 512 Gbit/s. Its PCIe latency is 2 cycles.
    pub fn pspin_test_bench() -> Self {
        Self { egress_gbit: 512, pcie_latency_ns: 2, ..Self::default() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_papers_sums() {
        let constants = Constants::default();
        assert_eq!(constants.packet_payload_bytes(), 2016);
        assert_eq!(constants.requests(), 81_707, "82 K in section III-B2");
        assert_eq!(constants.clusters * constants.hpus, 32);
        let copy = 2048 / constants.port_bytes;
        assert_eq!(copy, 32, "Fig. 7");
        assert_eq!(copy + constants.l1_copy_ns, 43, "Fig. 7");
    }

    #[test]
    fn the_fitted_constants_are_few_and_named_above() {
        let rows = Constants::default().rows();
        let fitted = rows.iter().filter(|row| row.origin.kind() == "fitted");
        let names: Vec<&str> = fitted.map(|row| row.name).collect();
        let expected = ["post_ns", "inject_ns", "rpc_dispatch_ns", "ec_operation_ns", "ec_gbit"];
        assert_eq!(names, expected);
        for row in rows {
            assert!(!row.about.is_empty() && !row.origin.text().is_empty(), "{}", row.name);
        }
    }
}
