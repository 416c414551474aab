//! Maps to text.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt::{self, Display, Write};

use super::labels::Labels;
use super::order::Order;
use super::weight;
use crate::check::FIRST_SIGNED_WEIGHT;
use crate::choose_args::{ChooseArgs, ChooseArgsId};
use crate::map::Map;
use crate::rule::{Rule, RuleStep};
use crate::{Algorithm, Bucket, BucketId, ClassId, ItemId, RuleId, Tunables, TypeId, WEIGHT_ONE};

/// The text of a map. The [module](super) lists the parts that text cannot carry.
#[must_use]
pub fn print(map: &Map) -> String {
    let labels = Labels::of(map);
    let mut printer = Printer {
        map,
        order: Order::of(map, &labels),
        labels,
        out: String::new(),
        done: HashSet::new(),
        read_back: HashMap::new(),
    };
    // A write to a String cannot fail.
    let _: fmt::Result = printer.map();
    printer.out
}

/// The shadows of buckets, in the order of their classes.
type Shadows = HashMap<BucketId, BTreeMap<usize, (ClassId, BucketId)>>;

struct Printer<'a> {
    map: &'a Map,
    labels: Labels,
    order: Order,
    out: String,
    /// Buckets that are already printed.
    done: HashSet<BucketId>,
    /// The total weight of a printed bucket's items when the text is read.
    read_back: HashMap<BucketId, u32>,
}

impl Printer<'_> {
    fn map(&mut self) -> fmt::Result {
        writeln!(self.out, "# CRUSH map")?;
        self.tunables()?;
        self.devices_and_types()?;
        self.buckets()?;
        writeln!(self.out, "\n# rules")?;
        for (id, rule) in self.map.rules() {
            self.rule(id, rule)?;
        }
        if !self.map.choose_args().is_empty() {
            writeln!(self.out, "\n# choose_args")?;
        }
        for (&id, args) in self.map.choose_args() {
            self.choose_args(id, args)?;
        }
        Ok(())
    }

    /// The tunables that differ from the defaults of a text.
    fn tunables(&mut self) -> fmt::Result {
        let values = |t: &Tunables| {
            [
                ("choose_local_tries", t.choose_local_tries),
                ("choose_local_fallback_tries", t.choose_local_fallback_tries),
                ("choose_total_tries", t.choose_total_tries),
                ("chooseleaf_descend_once", t.chooseleaf_descend_once.into()),
                ("chooseleaf_vary_r", t.chooseleaf_vary_r.into()),
                ("chooseleaf_stable", t.chooseleaf_stable.into()),
                ("straw_calc_version", t.straw_calc_version.into()),
                ("allowed_bucket_algs", t.allowed_bucket_algs),
                ("msr_descents", t.msr_descents),
                ("msr_collision_tries", t.msr_collision_tries),
            ]
        };
        for ((name, value), (_, legacy)) in
            values(self.map.tunables()).into_iter().zip(values(&Tunables::LEGACY))
        {
            if value != legacy {
                writeln!(self.out, "tunable {name} {value}")?;
            }
        }
        Ok(())
    }

    fn devices_and_types(&mut self) -> fmt::Result {
        writeln!(self.out, "\n# devices")?;
        for item in &self.order.devices {
            write!(self.out, "device {} {}", item.0, self.labels.items[item])?;
            if let Some(class) = self.map.classes().of_item.get(item) {
                write!(self.out, " class {}", self.labels.classes[class])?;
            }
            writeln!(self.out)?;
        }
        writeln!(self.out, "\n# types")?;
        for (TypeId(number), name) in &self.labels.types {
            writeln!(self.out, "type {number} {name}")?;
        }
        Ok(())
    }

    fn buckets(&mut self) -> fmt::Result {
        writeln!(self.out, "\n# buckets")?;
        let mut shadows = Shadows::new();
        for (&shadow, (original, class)) in &self.labels.shadows {
            let of_class = shadows.entry(*original).or_default();
            of_class.insert(self.order.classes[class], (*class, shadow));
        }
        for bucket in self.map.buckets() {
            if !self.labels.shadows.contains_key(&bucket.id) {
                self.bucket_and_below(bucket, &shadows)?;
            }
        }
        Ok(())
    }

    /// Prints a bucket after the buckets in it. The bound of all maps limits the depth.
    fn bucket_and_below(&mut self, bucket: &Bucket, shadows: &Shadows) -> fmt::Result {
        if !self.done.insert(bucket.id) {
            return Ok(());
        }
        let map = self.map;
        for child in bucket.items.iter().filter_map(|item| map.bucket(item.bucket()?)) {
            self.bucket_and_below(child, shadows)?;
        }
        let (kind, name) =
            (&self.labels.types[&bucket.kind], &self.labels.items[&ItemId::from(bucket.id)]);
        writeln!(self.out, "{kind} {name} {{\n\tid {}", bucket.id.0)?;
        for (class, shadow) in shadows.get(&bucket.id).iter().flat_map(|of_class| of_class.values())
        {
            writeln!(self.out, "\tid {} class {}", shadow.0, self.labels.classes[class])?;
        }
        writeln!(self.out, "\t# weight {}", weight::rounded(bucket.weight))?;
        writeln!(self.out, "\talg {}\n\thash 0\t# rjenkins1", bucket.algorithm.kind().word())?;
        let mut sum = 0u32;
        for (index, &item) in bucket.items.iter().enumerate() {
            sum = sum.wrapping_add(self.item(bucket, index, item)?);
        }
        self.read_back.insert(bucket.id, sum);
        writeln!(self.out, "}}")
    }

    /// Prints the line of an item. Returns the item's weight when the text is read.
    fn item(&mut self, bucket: &Bucket, index: usize, item: ItemId) -> Result<u32, fmt::Error> {
        let weight = bucket.item_weight(index);
        write!(self.out, "\titem {}", self.labels.items[&item])?;
        let uniform = matches!(bucket.algorithm, Algorithm::Uniform { .. });
        let unsaid = match item.bucket() {
            Some(child) => self.read_back.get(&child).copied().unwrap_or(0),
            None => WEIGHT_ONE,
        };
        let read_back = match weight::exactly(weight) {
            Some(text) => {
                write!(self.out, " weight {text}")?;
                weight
            }
            // Items of a uniform bucket must all be cut in the same way.
            None if weight == unsaid && !uniform => weight,
            None => {
                let below = weight::nearest_below(weight);
                let text = weight::exactly(below).unwrap_or_default();
                write!(self.out, " weight {text}\t# cut from {weight:#x}: text has 24 bits")?;
                below
            }
        };
        let straw2 = matches!(bucket.algorithm, Algorithm::Straw2 { .. });
        if straw2 && weight >= FIRST_SIGNED_WEIGHT {
            write!(self.out, "\t# wins every draw: Ceph takes 32768.0 and more as negative")?;
        }
        writeln!(self.out)?;
        Ok(read_back)
    }

    fn rule(&mut self, id: RuleId, rule: &Rule) -> fmt::Result {
        writeln!(self.out, "rule {} {{\n\tid {}", self.labels.rules[&id], id.0)?;
        if u32::from(rule.ruleset) != id.0 {
            writeln!(self.out, "\t# its ruleset was {}", rule.ruleset)?;
        }
        match rule.kind.word() {
            Some(word) => writeln!(self.out, "\ttype {word}")?,
            None => writeln!(self.out, "\ttype {}", rule.kind.number())?,
        }
        let sizes = (rule.min_size, rule.max_size);
        if !rule.kind.is_msr() || sizes != (Rule::DEFAULT_MIN_SIZE, Rule::DEFAULT_MAX_SIZE) {
            writeln!(self.out, "\tmin_size {}\n\tmax_size {}", sizes.0, sizes.1)?;
        }
        for &step in &rule.steps {
            self.step(step)?;
        }
        writeln!(self.out, "}}")
    }

    fn step(&mut self, step: RuleStep) -> fmt::Result {
        let out = &mut self.out;
        let types = &self.labels.types;
        let mut choose = |verb: &str, count: i32, kind: TypeId| {
            writeln!(out, "\tstep {verb} {count} type {}", types[&kind])
        };
        match step {
            RuleStep::ChooseFirstn { count, kind } => choose("choose firstn", count, kind),
            RuleStep::ChooseIndep { count, kind } => choose("choose indep", count, kind),
            RuleStep::ChooseleafFirstn { count, kind } => choose("chooseleaf firstn", count, kind),
            RuleStep::ChooseleafIndep { count, kind } => choose("chooseleaf indep", count, kind),
            RuleStep::ChooseMsr { count, kind } => choose("choosemsr", count, kind),
            RuleStep::Noop => writeln!(out, "\tstep noop"),
            RuleStep::Emit => writeln!(out, "\tstep emit"),
            RuleStep::Take(item) => self.take(item),
            RuleStep::SetChooseTries(n) => self.set("choose_tries", n),
            RuleStep::SetChooseleafTries(n) => self.set("chooseleaf_tries", n),
            RuleStep::SetChooseLocalTries(n) => self.set("choose_local_tries", n),
            RuleStep::SetChooseLocalFallbackTries(n) => self.set("choose_local_fallback_tries", n),
            RuleStep::SetChooseleafVaryR(n) => self.set("chooseleaf_vary_r", n),
            RuleStep::SetChooseleafStable(n) => self.set("chooseleaf_stable", n),
            RuleStep::SetMsrDescents(n) => self.set("msr_descents", n),
            RuleStep::SetMsrCollisionTries(n) => self.set("msr_collision_tries", n),
        }
    }

    fn set(&mut self, what: &str, value: i32) -> fmt::Result {
        writeln!(self.out, "\tstep set_{what} {value}")
    }

    fn take(&mut self, item: ItemId) -> fmt::Result {
        let shadow = item.bucket().and_then(|id| self.labels.shadows.get(&id));
        if let Some((original, class)) = shadow {
            let name = &self.labels.items[&ItemId::from(*original)];
            return writeln!(self.out, "\tstep take {name} class {}", self.labels.classes[class]);
        }
        match self.labels.items.get(&item).filter(|_| self.map.contains(item)) {
            Some(name) => writeln!(self.out, "\tstep take {name}"),
            None => writeln!(self.out, "\t# step take {}: there is no {item}", item.0),
        }
    }

    fn choose_args(&mut self, ChooseArgsId(id): ChooseArgsId, args: &ChooseArgs) -> fmt::Result {
        let number = match i32::try_from(id) {
            Ok(-1) => u64::MAX,
            // The reader cuts the number to 32 bits.
            Ok(id) => u64::from(id as u32),
            Err(_) => {
                return writeln!(self.out, "# choose_args {id} cannot be said in text");
            }
        };
        writeln!(self.out, "choose_args {number} {{")?;
        for (bucket, arg) in args.buckets.iter().rev() {
            writeln!(self.out, "  {{\n    bucket_id {}", bucket.0)?;
            if !arg.weight_sets.is_empty() {
                writeln!(self.out, "    weight_set [")?;
                for weights in &arg.weight_sets {
                    self.weights(weights)?;
                }
                writeln!(self.out, "    ]")?;
            }
            if let Some(ids) = &arg.ids {
                writeln!(self.out, "    ids [ {}]", list(ids.iter().map(|id| id.0)))?;
            }
            writeln!(self.out, "  }}")?;
        }
        writeln!(self.out, "}}")
    }

    fn weights(&mut self, weights: &[u32]) -> fmt::Result {
        let below = weights.iter().map(|&weight| weight::nearest_below(weight));
        let texts = below.filter_map(weight::exactly);
        write!(self.out, "      [ {}]", list(texts))?;
        if weights.iter().any(|&weight| weight::exactly(weight).is_none()) {
            let exact = weights.iter().map(|weight| format!("{weight:#x}"));
            write!(self.out, "\t# cut from {}: text has 24 bits", list(exact).trim_end())?;
        }
        writeln!(self.out)
    }
}

/// The list, with a blank after each element.
fn list(things: impl Iterator<Item = impl Display>) -> String {
    things.map(|thing| format!("{thing} ")).collect()
}
