//! What the size of a Ceph cluster costs a client: maps of 10 to 10,000 OSDs, and clients with a
//! connection to each of up to 1,000 OSDs. No cluster and no network is needed: maps are built when
//! the example runs, and the OSDs are a [`WireCluster`](fieldstone_cluster_model::wire).
//!
//! ```sh
//! cargo run --release -p fieldstone-cluster-model --example scale            # a table
//! cargo run --release -p fieldstone-cluster-model --example scale -- --json  # a line for each row
//! ```
//!
//! **What is counted, and what is timed.** Bytes are those that the allocator was asked for,
//! counted while the code of the client runs; they do not depend on the machine. Wake-ups are
//! counted on a virtual clock. Times are elapsed time, most of them the median of 31 runs: run it
//! on a quiet machine.
//!
//! **The clusters.** Ten OSDs to a host, ten hosts to a rack; one pool of three copies on different
//! hosts (on different OSDs if there are fewer than three hosts), with 100 to 200 copies of groups
//! on each OSD (a power of two of groups). One group of eight has an upmap, as the balancer of a
//! real cluster makes them.

mod count;
mod maps;
mod model;
mod sessions;

use std::time::Duration;

use count::Counting;
use serde_json::json;

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Sizes of the maps, in OSDs.
const MAPS: [u32; 4] = [10, 100, 1_000, 10_000];
/// Sizes of the clusters that a client connects to.
const CLUSTERS: [u32; 3] = [10, 100, 1_000];

/// One number of one cluster.
pub struct Figure {
    osds: u32,
    name: &'static str,
    unit: &'static str,
    value: f64,
}

/// All numbers, in the order in which they were found.
#[derive(Default)]
pub struct Figures(Vec<Figure>);

impl Figures {
    fn add(&mut self, osds: u32, name: &'static str, unit: &'static str, value: f64) {
        self.0.push(Figure { osds, name, unit, value });
    }

    fn count(&mut self, osds: u32, name: &'static str, unit: &'static str, value: usize) {
        self.add(osds, name, unit, value as f64);
    }

    fn micros(&mut self, osds: u32, name: &'static str, time: Duration) {
        self.add(osds, name, "us", time.as_nanos() as f64 / 1e3);
    }

    fn print_lines(&self) {
        for Figure { osds, name, unit, value } in &self.0 {
            println!("{}", json!({"osds": osds, "figure": name, "unit": unit, "value": value}));
        }
    }

    fn print_table(&self) {
        println!("{:58}{}", "OSDs", MAPS.map(|osds| format!("{osds:>12}")).concat());
        let mut names: Vec<(&str, &str)> = Vec::new();
        for figure in &self.0 {
            if !names.contains(&(figure.name, figure.unit)) {
                names.push((figure.name, figure.unit));
            }
        }
        for (name, unit) in names {
            let cells = MAPS.map(|osds| {
                let found = self.0.iter().find(|figure| figure.osds == osds && figure.name == name);
                format!("{:>12}", found.map_or(String::new(), |figure| shown(figure.value)))
            });
            println!("{:58}{}", format!("{name} [{unit}]"), cells.concat());
        }
    }
}

/// A number with three digits or more.
fn shown(value: f64) -> String {
    match value {
        value if value >= 100.0 || value.fract() == 0.0 => format!("{value:.0}"),
        value if value >= 10.0 => format!("{value:.1}"),
        value => format!("{value:.2}"),
    }
}

fn main() {
    let is_json = match std::env::args().nth(1).as_deref() {
        None => false,
        Some("--json") => true,
        Some(other) => {
            eprintln!("{other:?} is unknown; the only option is --json");
            std::process::exit(2);
        }
    };
    let mut figures = Figures::default();
    for osds in MAPS {
        let map = model::map(osds);
        maps::measure(&map, osds, &mut figures);
        if CLUSTERS.contains(&osds) {
            sessions::measure(&map, osds, &mut figures);
        }
    }
    if is_json {
        figures.print_lines();
    } else {
        figures.print_table();
    }
}
