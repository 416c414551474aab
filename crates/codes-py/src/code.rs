//! `Code`: whole stripes in memory.

use std::collections::BTreeMap;
use std::sync::Arc;

use fieldstone_codes::{Code as Codes, Profile, Verdict, stripe};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyMapping};

use crate::buffers::{Buffers, new_array};
use crate::repair::RepairPlan;
use crate::{CodeError, refused};

/// An erasure code, made from its name: `Code("rs:4+2")`.
///
/// Make it once and share it, also between threads: it keeps the plans that it used last.
#[pyclass(frozen, module = "fieldstone_codes")]
pub(crate) struct Code {
    code: Arc<dyn Codes>,
    profile: Profile,
}

/// Python objects by the numbers of their shards.
type Shards<'py> = BTreeMap<usize, Bound<'py, PyAny>>;

#[pymethods]
impl Code {
    #[new]
    fn new(profile: &str) -> PyResult<Self> {
        let profile: Profile = profile.parse().map_err(|error| refused(&error))?;
        Ok(Self { code: profile.code(), profile })
    }

    /// The name of the code, in its shortest form.
    #[getter]
    fn profile(&self) -> String {
        self.profile.to_string()
    }

    /// Number of data shards.
    #[getter]
    fn k(&self) -> usize {
        self.code.k()
    }

    /// Number of parity shards: any `m` losses can be repaired.
    #[getter]
    fn m(&self) -> usize {
        self.code.m()
    }

    /// Elements per shard, the unit in which plans read.
    #[getter]
    fn elements(&self) -> u32 {
        self.code.elements()
    }

    /// Lengths of shards are multiples of this number.
    #[getter]
    fn granule_bytes(&self) -> usize {
        self.code.layout().granule_bytes(self.code.elements())
    }

    /// The length of each shard of an object of `object_bytes` bytes, by the rule of Ceph's plugin.
    fn chunk_bytes(&self, object_bytes: u64) -> PyResult<u64> {
        let chunk_bytes = self.profile.chunk_bytes(object_bytes);
        chunk_bytes.ok_or_else(|| CodeError::new_err("shards would be longer than 2^64 bytes"))
    }

    /// Computes the parities of the k data shards, into `parity` or a new array of m rows.
    #[pyo3(signature = (data, parity=None))]
    fn encode<'py>(
        &self,
        py: Python<'py>,
        data: &Bound<'py, PyAny>,
        parity: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyAny>>> {
        let mut buffers = Buffers::default();
        let lengths = buffers.read_all("data", data)?;
        let made = match (parity, lengths.first()) {
            (Some(_), _) => None,
            (None, len_bytes) => {
                Some(new_array(py, self.code.m(), len_bytes.copied().unwrap_or(0))?)
            }
        };
        let parity = parity.or(made.as_ref());
        buffers.write_all("parity", parity.expect("given or made"))?;
        buffers
            .compute(py, |(data, mut parity)| stripe::encode(&*self.code, &data, &mut parity))?;
        Ok(made)
    }

    /// Recomputes missing shards from any k others: the shards for which `out` has buffers, or all
    /// missing shards as new arrays.
    #[pyo3(signature = (shards, out=None))]
    fn decode<'py>(
        &self,
        py: Python<'py>,
        shards: &Bound<'py, PyAny>,
        out: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Option<Bound<'py, PyDict>>> {
        let count = self.code.k() + self.code.m();
        let given = by_shard("shards", shards, count)?;
        let mut buffers = Buffers::default();
        let mut len_bytes = 0;
        for (&shard, object) in &given {
            len_bytes = buffers.read("shards", Some(shard), object)?;
        }
        let (wanted, made) = match out {
            Some(out) => (by_shard("out", out, count)?, None),
            None => {
                let (wanted, made) = self.missing(py, &given, len_bytes)?;
                (wanted, Some(made))
            }
        };
        if let Some(shard) = wanted.keys().find(|shard| given.contains_key(shard)) {
            return Err(CodeError::new_err(format!("shard {shard} is both given and wanted")));
        }
        for (&shard, object) in &wanted {
            buffers.write("out", Some(shard), object)?;
        }
        let lost: Vec<usize> = wanted.keys().copied().collect();
        let given: Vec<usize> = given.into_keys().collect();
        buffers.compute(py, |(read, mut outputs)| {
            let mut there = vec![None; count];
            for (&shard, bytes) in given.iter().zip(read) {
                there[shard] = Some(bytes);
            }
            stripe::decode(&*self.code, &there, &lost, &mut outputs)
        })?;
        Ok(made)
    }

    /// Plans the repair of `lost` from some of `available`. The plan reads as little as the code
    /// allows.
    fn repair_plan(
        &self,
        lost: &Bound<'_, PyAny>,
        available: &Bound<'_, PyAny>,
    ) -> PyResult<RepairPlan> {
        let (lost, available) = (numbers(lost)?, numbers(available)?);
        let plan = self.code.repair(&lost, &available).map_err(|error| refused(&error))?;
        Ok(RepairPlan::new(Arc::clone(&self.code), plan))
    }

    /// Updates the parities for a write to data shard `shard`: its bytes at `offset` were `old` and
    /// are `new`.
    fn update(
        &self,
        py: Python<'_>,
        shard: usize,
        offset: usize,
        old: &Bound<'_, PyAny>,
        new: &Bound<'_, PyAny>,
        parity: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let mut buffers = Buffers::default();
        buffers.read("old", None, old)?;
        buffers.read("new", None, new)?;
        buffers.write_all("parity", parity)?;
        buffers.compute(py, |(contents, mut parity)| {
            stripe::update(&*self.code, shard, offset, contents[0], contents[1], &mut parity)
        })
    }

    /// True if the parities of all k + m shards belong to the data.
    fn verify(&self, py: Python<'_>, shards: &Bound<'_, PyAny>) -> PyResult<bool> {
        let mut buffers = Buffers::default();
        buffers.read_all("shards", shards)?;
        buffers.compute(py, |(shards, _)| stripe::verify(&*self.code, &shards))
    }

    /// The shards that may be wrong: none, the only possible one, or all if the check cannot tell.
    fn locate(&self, py: Python<'_>, shards: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
        let mut buffers = Buffers::default();
        buffers.read_all("shards", shards)?;
        let verdict = buffers.compute(py, |(shards, _)| stripe::locate(&*self.code, &shards))?;
        Ok(match verdict {
            Verdict::Consistent => Vec::new(),
            Verdict::Wrong(shard) => vec![shard],
            Verdict::Unknown => (0..self.code.k() + self.code.m()).collect(),
        })
    }

    fn __repr__(&self) -> String {
        format!("Code('{}')", self.profile)
    }

    /// The arguments from which pickle makes the object.
    fn __getnewargs__(&self) -> (String,) {
        (self.profile(),)
    }
}

impl Code {
    /// New arrays for the shards that are not given, by shard and as a dict.
    fn missing<'py>(
        &self,
        py: Python<'py>,
        given: &Shards<'py>,
        len_bytes: usize,
    ) -> PyResult<(Shards<'py>, Bound<'py, PyDict>)> {
        let all = 0..self.code.k() + self.code.m();
        let lost: Vec<usize> = all.filter(|shard| !given.contains_key(shard)).collect();
        // Too many shards are missing. The error for that needs no memory for them.
        let row_bytes = if given.len() < self.code.k() { 0 } else { len_bytes };
        let array = new_array(py, lost.len(), row_bytes)?;
        let (mut wanted, made) = (Shards::new(), PyDict::new(py));
        for (at, shard) in lost.into_iter().enumerate() {
            let row = array.get_item(at)?;
            made.set_item(shard, &row)?;
            wanted.insert(shard, row);
        }
        Ok((wanted, made))
    }
}

/// The numbers of shards in a list, a range, or any other iterable.
fn numbers(shards: &Bound<'_, PyAny>) -> PyResult<Vec<usize>> {
    shards.try_iter()?.map(|shard| shard?.extract()).collect()
}

/// The entries of a mapping from shards to buffers, or of a list in which `None` stands for missing
/// shards.
fn by_shard<'py>(
    argument: &str,
    shards: &Bound<'py, PyAny>,
    count: usize,
) -> PyResult<Shards<'py>> {
    let mut entries = Shards::new();
    if let Ok(mapping) = shards.cast::<PyMapping>() {
        for item in mapping.items()?.iter() {
            let (shard, object): (usize, Bound<'py, PyAny>) = item.extract()?;
            if shard >= count {
                let message = format!("{argument} has shard {shard}, but there are {count} shards");
                return Err(CodeError::new_err(message));
            }
            entries.insert(shard, object);
        }
        return Ok(entries);
    }
    let list = shards.try_iter()?.collect::<PyResult<Vec<_>>>()?;
    if list.len() != count {
        let message = format!("{argument} has {} entries instead of {count}", list.len());
        return Err(CodeError::new_err(message));
    }
    entries.extend(list.into_iter().enumerate().filter(|(_, object)| !object.is_none()));
    Ok(entries)
}
