//! Statistics over a few runs.
//!
//! Comparisons of runs use medians, so that one disturbed run does not decide. Where the papers
//! report a standard deviation, so do the benchmarks (of a sample: divided by n - 1).

/// The median: the middle value, or the mean of the two middle ones. `None` without values.
pub fn median(values: &[f64]) -> Option<f64> {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        sorted.get(middle).copied()
    } else {
        Some((sorted.get(middle.checked_sub(1)?)? + sorted.get(middle)?) / 2.0)
    }
}

/// The arithmetic mean. `None` without values.
pub fn mean(values: &[f64]) -> Option<f64> {
    (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
}

/// The sample standard deviation. `None` for fewer than two values.
pub fn standard_deviation(values: &[f64]) -> Option<f64> {
    if values.len() < 2 {
        return None;
    }
    let mean = mean(values)?;
    let squares: f64 = values.iter().map(|value| (value - mean).powi(2)).sum();
    Some((squares / (values.len() - 1) as f64).sqrt())
}

/// The smallest and the largest value. `None` without values.
pub fn range(values: &[f64]) -> Option<(f64, f64)> {
    let smallest = values.iter().copied().min_by(f64::total_cmp)?;
    let largest = values.iter().copied().max_by(f64::total_cmp)?;
    Some((smallest, largest))
}

/// The quotient, or `None` if it is not a finite number.
pub fn quotient(numerator: f64, denominator: f64) -> Option<f64> {
    let quotient = numerator / denominator;
    quotient.is_finite().then_some(quotient)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn known_values() {
        assert_eq!(median(&[]), None);
        assert_eq!(median(&[3.0]), Some(3.0));
        assert_eq!(median(&[9.0, 1.0, 5.0]), Some(5.0));
        assert_eq!(median(&[4.0, 1.0, 3.0, 100.0]), Some(3.5));
        assert_eq!(mean(&[]), None);
        assert_eq!(mean(&[1.0, 2.0, 6.0]), Some(3.0));
        assert_eq!(standard_deviation(&[1.0]), None);
        // 2, 4, 4, 4, 5, 5, 7, 9: squared deviations sum to 32, so sqrt(32 / 7).
        let deviation = standard_deviation(&[2.0, 4.0, 4.0, 4.0, 5.0, 5.0, 7.0, 9.0]);
        assert!((deviation.expect("eight values") - (32.0f64 / 7.0).sqrt()).abs() < 1e-12);
        assert_eq!(range(&[2.0, -1.0, 7.0]), Some((-1.0, 7.0)));
        assert_eq!(range(&[]), None);
        assert_eq!(quotient(1.0, 0.0), None);
        assert_eq!(quotient(0.0, 0.0), None);
        assert_eq!(quotient(6.0, 3.0), Some(2.0));
    }

    proptest! {
        #[test]
        fn a_median_splits_the_values(values in proptest::collection::vec(-1e9f64..1e9, 1..40)) {
            let middle = median(&values).expect("there are values");
            let below = values.iter().filter(|value| **value < middle).count();
            let above = values.iter().filter(|value| **value > middle).count();
            prop_assert!(below <= values.len() / 2 && above <= values.len() / 2);
            let (smallest, largest) = range(&values).expect("there are values");
            prop_assert!(smallest <= middle && middle <= largest);
        }

        #[test]
        fn a_deviation_ignores_shifts_and_follows_scale(
            values in proptest::collection::vec(-1e3f64..1e3, 2..20),
            shift in -1e3f64..1e3,
        ) {
            let plain = standard_deviation(&values).expect("two or more");
            let moved: Vec<f64> = values.iter().map(|value| 3.0 * value + shift).collect();
            let moved = standard_deviation(&moved).expect("two or more");
            prop_assert!((moved - 3.0 * plain).abs() < 1e-6 * (1.0 + plain));
        }
    }
}
