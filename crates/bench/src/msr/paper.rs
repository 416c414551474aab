//! The paper's numbers: Qin et al., "A Generic FPGA Accelerator for Minimum Storage Regenerating
//! Codes".
//!
//! The text prints the rates of Table I and ratios. It does not print the points of Fig. 5, the
//! figure that this benchmark draws again, so none of them is here. It does not print a definition
//! of throughput either: [`DEFINITION`] says how this project reads it.

use super::case::{Who, Work};

/// The paper's name in reports.
pub const NAME: &str = "MSR engine (Qin et al.)";
/// The size of the objects of Table I.
pub const TABLE_I_BYTES: usize = 64 << 20;
/// The clock of the paper's kernel: Table II and section IV-C.
pub const CLOCK_MHZ: f64 = 300.0;

/// A column of Table I.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Column {
    /// "# of threads".
    pub threads: u32,
    /// "Throughput (GB/sec)".
    pub gb_per_second: f64,
    /// "LLC hit rate".
    pub hit_rate: f64,
    /// "DRAM util (GB/sec)".
    pub dram_gb_per_second: f64,
}

const fn column(threads: u32, gb_per_second: f64, hit_rate: f64, dram: f64) -> Column {
    Column { threads, gb_per_second, hit_rate, dram_gb_per_second: dram }
}

/// Table I: "Zigzag encode performance for 64MB object size using GF-Complete library".
pub const TABLE_I: [Column; 5] = [
    column(1, 2.18, 0.4, 9.53),
    column(4, 7.67, 0.014, 40.99),
    column(8, 10.64, 0.02, 59.55),
    column(12, 10.96, 0.007, 63.22),
    column(16, 10.98, 0.007, 64.60),
];

/// Encode on the FPGA over the peak of the CPU, "for larger stripe sizes": section IV-C.
pub const ENCODE_OVER_CPU: f64 = 3.1;
/// The FPGA over the GPU, encode and decode together: the abstract.
pub const OVER_GPU: [f64; 2] = [2.8, 3.3];

/// How this project reads the paper's throughput.
pub const DEFINITION: &str = "The paper prints no definition of throughput. It splits \"the data \
    object (a.k.a. stripe)\" into k fragments (section II-A), gives Table I for a \"64MB object \
    size\", and draws Fig. 5 over the stripe size. So a rate here is bytes of objects (the k data \
    shards) per second, in 10^9, in a rebuild too, which makes a quarter of the object. The JSON \
    rows of rebuilds also have `rebuilt`, bytes of the lost shard per second, and `read`, bytes \
    read per second: other readings of the same word";

/// Sentences and numbers of the paper as printed, each with its place.
pub const STATEMENTS: [(&str, &str); 10] = [
    (
        "~ 2.4 - 3.1 x better throughput [...] compared to the state-of-art multi-core CPU \
         implementation and ~ 2.8 - 3.3 x better throughput [...] compared to a modern GPU \
         accelerator",
        "abstract",
    ),
    (
        "the encode throughput doesn't scale well with increased number of threads. This is caused \
         by poor cache performance which saturates the system DRAM bandwidth",
        "section I",
    ),
    (
        "compared to peak CPU implementation, our FPGA accelerator achieves similar performance \
         for smaller stripe size and 3.1x better on encode and 2.4x better on decode for larger \
         stripe sizes",
        "section IV-C, of Fig. 5a",
    ),
    (
        "Our FPGA accelerator also surpasses the GPU implementation by ~2-3x",
        "section IV-C; the abstract says 2.8-3.3",
    ),
    (
        "Our accelerator can reduce up to 20% of the DRAM traffic compared to CPU and 43% compared \
         to GPU",
        "section IV-C",
    ),
    (
        "We enable 4MB batch mode for 16KB and 128KB stripe size for both FPGA and GPU",
        "caption of Fig. 5",
    ),
    (
        "a batch process to process multiple same size input data in single kernel launch",
        "section III-D",
    ),
    (
        "For GPU implementation, each thread processes only a few 32 bits GF multiply-adds",
        "section IV-C",
    ),
    (
        "the CPU runs at 2.1GHz with 85.3 GB/sec memory bandwidth. The FPGA accelerator runs at \
         300MHz with 76.8 GB/sec memory bandwidth. GPU accelerator runs at 875MHz with 240 GB/sec \
         memory bandwidth",
        "section IV-C; Xeon Gold 6152, 22 cores; VCU1525; Tesla K80 (section IV-A)",
    ),
    (
        "uses all 4 DDR4 channels on board and each channel (memory unit) implements three \
         processing units",
        "section IV-B; Table II: 300MHz",
    ),
];

/// The best rate of Table I.
pub fn peak_cpu() -> f64 {
    TABLE_I.iter().map(|column| column.gb_per_second).fold(0.0, f64::max)
}

/// Encode on the paper's FPGA, derived.
pub fn fpga_encode() -> f64 {
    peak_cpu() * ENCODE_OVER_CPU
}

/// Encode on the paper's GPU, derived: lowest and highest.
pub fn gpu_encode() -> [f64; 2] {
    let [least, most] = OVER_GPU;
    [fpga_encode() / most, fpga_encode() / least]
}

/// How the derived numbers follow from printed ones.
pub fn derivations() -> [String; 2] {
    let [low, high] = gpu_encode();
    [
        format!(
            "FPGA, encode, large objects: {} GB/s of Table I times {ENCODE_OVER_CPU} of section \
             IV-C is {:.1} GB/s. The paper does not say that Table I and Fig. 5 are of the same \
             CPU and the same runs, so this is an estimate of ours",
            peak_cpu(),
            fpga_encode()
        ),
        format!(
            "GPU, encode, large objects: that over 2.8 to 3.3 of the abstract is {low:.1} to \
             {high:.1} GB/s. The abstract gives one range for encode and decode. Section IV-C \
             says \"~2-3x\""
        ),
    ]
}

/// A number of the paper for a point of ours.
#[derive(Clone, Debug, PartialEq)]
pub struct Quoted {
    /// What it is of.
    pub name: &'static str,
    /// The number, in GB/s.
    pub gb_per_second: f64,
    /// Its place.
    pub reference: &'static str,
    /// True if it is not printed, but follows from printed numbers: [`derivations`].
    pub is_derived: bool,
}

/// The paper's number for the same work on the same size by its neighbour of our contender.
pub fn quoted(work: Work, object_bytes: usize, who: Who) -> Option<Quoted> {
    if work != Work::Encode || object_bytes != TABLE_I_BYTES {
        return None;
    }
    let [one, .., sixteen] = TABLE_I;
    let (name, gb_per_second, reference, is_derived) = match who {
        Who::CpuOne | Who::GfOne => {
            ("paper: CPU, 1 thread", one.gb_per_second, "MSR engine, Table I, 64MB", false)
        }
        Who::CpuAll | Who::GfAll => {
            ("paper: CPU, 16 threads", sixteen.gb_per_second, "MSR engine, Table I, 64MB", false)
        }
        Who::FpgaPaperClock => {
            let place = "derived: MSR engine, Table I (64MB, peak) x section IV-C (3.1)";
            ("paper: FPGA (derived)", fpga_encode(), place, true)
        }
        _ => return None,
    };
    Some(Quoted { name, gb_per_second, reference, is_derived })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn derived_values_follow_from_printed_ones() {
        assert_eq!(peak_cpu(), 10.98);
        assert!((fpga_encode() - 34.038).abs() < 1e-9);
        let [low, high] = gpu_encode();
        assert!((low - 10.3145).abs() < 1e-3 && (high - 12.1564).abs() < 1e-3, "{low} {high}");
        let [fpga, gpu] = derivations();
        assert!(fpga.contains("10.98 GB/s") && fpga.contains("34.0 GB/s"), "{fpga}");
        assert!(gpu.contains("10.3 to 12.2 GB/s"), "{gpu}");
    }

    #[test]
    fn only_table_i_is_quoted() {
        let one = quoted(Work::Encode, 64 << 20, Who::CpuOne).expect("printed");
        assert_eq!((one.gb_per_second, one.is_derived), (2.18, false));
        let fpga = quoted(Work::Encode, 64 << 20, Who::FpgaPaperClock).expect("derived");
        assert!(fpga.is_derived && fpga.reference.contains("derived"));
        assert_eq!(quoted(Work::Rebuild, 64 << 20, Who::CpuOne), None, "no rebuild is printed");
        assert_eq!(quoted(Work::Encode, 16 << 20, Who::CpuAll), None, "no other size is printed");
        assert_eq!(quoted(Work::Encode, 64 << 20, Who::Gpu), None, "only a range");
    }
}
