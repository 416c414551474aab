//! Scratch.
#![allow(missing_docs)]
use fieldstone_crush::*;
use std::time::Instant;
fn main() {
    let alg = std::env::args().nth(1).unwrap_or("straw2".into());
    let alg = AlgorithmKind::from_word(&alg).unwrap();
    let only = std::env::args().nth(2);
    for (name, racks, hosts, osds) in
        [("32", 2, 4, 4), ("256", 4, 8, 8), ("1024", 8, 8, 16), ("10240", 16, 32, 20)]
    {
        if only.as_deref().is_some_and(|o| o != name) {
            continue;
        }
        let mut b = MapBuilder::new();
        let (mut id, mut osd) = (-2, 0);
        let w = |o: i32| {
            if alg == AlgorithmKind::Uniform {
                65536
            } else {
                [65536u32, 131072, 32768, 262144, 119208, 476930, 16384][o as usize % 7]
            }
        };
        let mut rl = vec![];
        for _ in 0..racks {
            let mut hl = vec![];
            for _ in 0..hosts {
                let items: Vec<_> = (0..osds)
                    .map(|_| {
                        osd += 1;
                        (ItemId(osd - 1), w(osd - 1))
                    })
                    .collect();
                let t: u32 = items.iter().map(|i| i.1).sum();
                b.bucket(BucketId(id), TypeId(1), alg, items);
                hl.push((ItemId(id), t));
                id -= 1;
            }
            let t: u32 = hl.iter().map(|i| i.1).sum();
            b.bucket(BucketId(id), TypeId(2), alg, hl);
            rl.push((ItemId(id), t));
            id -= 1;
        }
        b.bucket(BucketId(-1), TypeId(3), alg, rl);
        b.rule(
            RuleId(0),
            [
                RuleStep::Take(ItemId(-1)),
                RuleStep::ChooseleafFirstn { count: 0, kind: TypeId(1) },
                RuleStep::Emit,
            ],
        );
        b.rule(
            RuleId(1),
            [
                RuleStep::SetChooseleafTries(5),
                RuleStep::SetChooseTries(100),
                RuleStep::Take(ItemId(-1)),
                RuleStep::ChooseleafIndep { count: 0, kind: TypeId(1) },
                RuleStep::Emit,
            ],
        );
        let map = b.build().unwrap();
        let weights = vec![WEIGHT_ONE; map.max_devices() as usize];
        let xs: Vec<u32> = (0..20000).collect();
        for (rule, width) in [(0, 3), (1, 6)] {
            let rule = map.rule(RuleId(rule)).unwrap();
            if let Some(k) = std::env::args().nth(3) {
                let k = match k.as_str() {
                    "avx2" => Kernel::Avx2,
                    "avx512" => Kernel::Avx512,
                    _ => Kernel::Scalar,
                };
                let only: usize = std::env::args().nth(4).unwrap().parse().unwrap();
                if only != width {
                    continue;
                }
                for _ in 0..50 {
                    std::hint::black_box(rule.map_rows_with(k, &xs, width, &weights));
                }
                continue;
            }
            let mut best = [f64::MAX; 4];
            for _ in 0..7 {
                for (i, k) in Kernel::ALL.into_iter().enumerate() {
                    let n = if i == 0 { 3000 } else { 20000 };
                    let t = Instant::now();
                    std::hint::black_box(rule.map_rows_with(k, &xs[..n], width, &weights));
                    best[i] = best[i].min(t.elapsed().as_secs_f64() * 1e9 / n as f64);
                }
                let t = Instant::now();
                for &x in &xs[..3000] {
                    std::hint::black_box(rule.map(x, width, &weights));
                }
                best[3] = best[3].min(t.elapsed().as_secs_f64() * 1e9 / 3000.0);
            }
            println!(
                "{name} width {width}: scalar {:.0} avx2 {:.0} avx512 {:.0} single {:.0} ns",
                best[0], best[1], best[2], best[3]
            );
        }
    }
}
