//! A course: random steps on images, with a model of the bytes that must be there.
//!
//! The idea is that of fsx, which tests file systems, and of its offspring for librbd. One image is
//! open at a time. A step sends some requests at once, resizes, takes, removes, protects or rolls
//! back a snapshot, clones the image and goes on with the clone, flattens, goes to an older image
//! of the row of clones, opens the image again after closing it or after its client has died, or
//! compares. Each read is compared with the model. Old images and snapshots are compared when
//! nothing needs them any more, before they are removed.
//!
//! **A row of images.** The images form a row: each but the first was cloned from a snapshot `base`
//! of the one before it. [`ROW_MAX`] bounds the row. When an image needs its parent no more, all
//! images before it are compared and removed.
//!
//! **Refusals** are predicted too: what must be refused is asked for now and then, and must be.
//!
//! **Repeating.** A step's random numbers depend on the seed and its own number only, and a step
//! fits any state. So any list of steps is a valid course, and a failing course can be made shorter
//! by leaving steps out.

mod carrier;
mod member;
mod orders;
mod random;
mod requests;

pub use carrier::{Carrier, Checked, Io, Order, bytes_of, same};
use fieldstone_rbd::format::Features;
use fieldstone_rbd::pool::CreateOptions;
use member::Member;
use random::Random;

/// The most images of a row.
const ROW_MAX: usize = 5;
/// The most snapshots that an image gets, beside the base of its clone.
const SNAPSHOTS_MAX: usize = 4;
/// The most requests of one step.
const BURST_MAX: u64 = 6;

/// What kinds of images a course uses.
#[derive(Clone, Debug)]
pub struct Config {
    pub name: &'static str,
    /// Each image draws one of each list.
    pub features: &'static [Features],
    pub orders: &'static [u8],
    /// Stripe unit, as a power of two below the order, and count; 0 for no striping.
    pub stripes: &'static [(u8, u64)],
    pub data_pools: &'static [Option<&'static str>],
    /// The largest image, in objects of the largest order.
    pub objects_max: u64,
    /// In how many of 10,000 steps the client dies.
    pub kills: u64,
}

const DEFAULT: Features = Features::DEFAULT;
/// Default features without `deep-flatten`: snapshots keep the parent.
const SHALLOW: Features = Features(DEFAULT.0 & !Features::DEEP_FLATTEN.0);
const LOCKED: Features = Features(Features::LAYERING.0 | Features::EXCLUSIVE_LOCK.0);
const DEEP_ONLY: Features = Features(Features::LAYERING.0 | Features::DEEP_FLATTEN.0);

/// The configurations of courses.
pub const CONFIGS: [Config; 5] = [
    Config {
        name: "layering",
        features: &[Features::LAYERING],
        orders: &[12],
        stripes: &[(0, 0)],
        data_pools: &[None],
        objects_max: 12,
        kills: 40,
    },
    Config {
        name: "default",
        features: &[DEFAULT],
        orders: &[12],
        stripes: &[(0, 0)],
        data_pools: &[None],
        objects_max: 12,
        kills: 40,
    },
    Config {
        name: "striped",
        features: &[DEFAULT, SHALLOW],
        orders: &[12, 13],
        stripes: &[(2, 3), (3, 2), (1, 5), (0, 2)],
        data_pools: &[None],
        objects_max: 10,
        kills: 20,
    },
    Config {
        name: "data-pool",
        features: &[DEFAULT, Features::LAYERING],
        orders: &[13],
        stripes: &[(0, 0)],
        data_pools: &[Some("data")],
        objects_max: 8,
        kills: 20,
    },
    Config {
        name: "mixed",
        features: &[DEFAULT, SHALLOW, LOCKED, DEEP_ONLY, Features::LAYERING],
        orders: &[12, 14, 16],
        stripes: &[(0, 0), (0, 0), (2, 3)],
        data_pools: &[None, Some("data")],
        objects_max: 3,
        kills: 20,
    },
];

/// Counts of a course.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    /// Requests and orders.
    pub operations: u64,
    pub clones: u64,
    pub flattened: u64,
    pub snapshots: u64,
    pub rollbacks: u64,
    pub resizes: u64,
    pub kills: u64,
    pub refusals: u64,
    pub compared_bytes: u64,
}

/// A course under way.
pub struct Course<'a, C> {
    carrier: &'a mut C,
    config: &'a Config,
    seed: u64,
    step: u64,
    /// The number of the next fill pattern in this step.
    fill: u64,
    /// The row of images, oldest first.
    row: Vec<Member>,
    /// The open image.
    at: usize,
    next_image: u32,
    pub counts: Counts,
    /// What the steps did, one line each.
    pub log: Vec<String>,
}

impl<'a, C: Carrier> Course<'a, C> {
    /// Makes the first image, and opens it.
    pub fn begin(carrier: &'a mut C, config: &'a Config, seed: u64) -> Result<Self, String> {
        let mut course = Self {
            carrier,
            config,
            seed,
            step: 0,
            fill: 0,
            row: Vec::new(),
            at: 0,
            next_image: 0,
            counts: Counts::default(),
            log: Vec::new(),
        };
        let mut random = Random::of_step(seed, u64::MAX);
        let options = course.draw_options(&mut random);
        let (name, size) = (course.new_name(), options.size_bytes);
        course.order(Order::Create(name.clone(), options.clone()))?;
        course.carrier.open(&name)?;
        course.row.push(Member::new(name, vec![0; size as usize], None, options));
        Ok(course)
    }

    /// Takes one step.
    pub fn take(&mut self, step: u64) -> Result<(), String> {
        self.step = step;
        self.fill = 0;
        let mut random = Random::of_step(self.seed, step);
        let random = &mut random;
        if random.below(10_000) < self.config.kills {
            return self.kill(random);
        }
        match random.below(100) {
            0..58 => self.burst(random),
            58..62 => self.compare_open(random),
            62..66 => self.list_extents(),
            66..71 => self.resize(random),
            71..76 => self.take_snapshot(random),
            76..79 => self.remove_snapshot(random),
            79..81 => self.protect(random),
            81..83 => self.roll_back(random),
            83..86 => self.compare_snapshot(random),
            86..89 => self.clone_open(random),
            89..91 => self.flatten(),
            91..94 => self.go_elsewhere(random),
            94..96 => self.reopen(),
            96..98 => self.ask_what_is_refused(random),
            _ => self.check_one(random),
        }
    }

    /// Compares everything, and removes all images.
    pub fn end(&mut self) -> Result<(), String> {
        self.log("the end");
        self.carrier.close()?;
        for index in 0..self.row.len() {
            self.check(index)?;
        }
        self.at = usize::MAX;
        self.remove_before(self.row.len())
    }

    fn log(&mut self, what: impl AsRef<str>) {
        let image = self.row.get(self.at).map_or("", |member| &member.name);
        self.log.push(format!("{}: {image}: {}", self.step, what.as_ref()));
    }

    fn open(&self) -> &Member {
        &self.row[self.at]
    }

    fn open_mut(&mut self) -> &mut Member {
        &mut self.row[self.at]
    }

    fn is_last(&self) -> bool {
        self.at + 1 == self.row.len()
    }

    fn new_name(&mut self) -> String {
        self.next_image += 1;
        format!("fsx{}-{}", self.seed, self.next_image)
    }

    fn draw_size(&self, random: &mut Random) -> u64 {
        let largest = self.config.orders.iter().max().map_or(12, |&order| order);
        let unit = 1 << largest;
        let size = random.within(1..self.config.objects_max * unit);
        if random.percent(30) { size.next_multiple_of(unit) } else { size }
    }

    fn draw_options(&self, random: &mut Random) -> CreateOptions {
        let config = self.config;
        let order = random.any_of(config.orders);
        let (unit_below, stripe_count) = random.any_of(config.stripes);
        let stripe_unit = if stripe_count == 0 { 0 } else { 1 << order.saturating_sub(unit_below) };
        CreateOptions {
            size_bytes: self.draw_size(random),
            order,
            features: random.any_of(config.features),
            stripe_unit,
            stripe_count,
            data_pool: random.any_of(config.data_pools).map(str::to_owned),
        }
    }

    /// An order that must succeed.
    fn order(&mut self, order: Order) -> Result<(), String> {
        self.counts.operations += 1;
        let what = format!("{order:?}");
        self.carrier.manage(order)?.map_err(|error| format!("{what}: {error}"))
    }

    /// An order that must be refused.
    fn refused(&mut self, order: Order) -> Result<(), String> {
        self.counts.operations += 1;
        self.counts.refusals += 1;
        let what = format!("{order:?}");
        match self.carrier.manage(order)? {
            Err(_) => Ok(()),
            Ok(()) => Err(format!("{what}: it should be refused, and is carried out")),
        }
    }
}
