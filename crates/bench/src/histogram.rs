//! Latencies: an HDR histogram in nanoseconds from 1 µs to 1 h with three significant digits, and its encoding in
//! messages and files.

use hdrhistogram::serialization::{Deserializer as HdrDeserializer, Serializer as HdrSerializer, V2Serializer};
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

const LOW_NS: u64 = 1_000;
const HIGH_NS: u64 = 3_600_000_000_000;

#[derive(Clone, Debug, PartialEq)]
pub struct Histogram(hdrhistogram::Histogram<u64>);

impl Default for Histogram {
    fn default() -> Histogram {
        let bounds = hdrhistogram::Histogram::new_with_bounds(LOW_NS, HIGH_NS, 3);
        Histogram(bounds.expect("the bounds are constants and in order"))
    }
}

impl Histogram {
    /// Records a value; values above one hour count as one hour.
    pub fn record(&mut self, nanoseconds: u64) {
        self.0.saturating_record(nanoseconds);
    }

    pub fn add(&mut self, other: &Histogram) {
        self.0.add(&other.0).expect("the bounds are the same");
    }

    pub fn clear(&mut self) {
        self.0.reset();
    }

    pub fn count(&self) -> u64 {
        self.0.len()
    }

    pub fn summary(&self) -> Latency {
        let ms = |nanoseconds: u64| nanoseconds as f64 / 1e6;
        if self.0.is_empty() {
            return Latency::default();
        }
        Latency {
            count: self.0.len(),
            min_ms: ms(self.0.min()),
            mean_ms: self.0.mean() / 1e6,
            stdev_ms: self.0.stdev() / 1e6,
            p50_ms: ms(self.0.value_at_quantile(0.5)),
            p90_ms: ms(self.0.value_at_quantile(0.9)),
            p95_ms: ms(self.0.value_at_quantile(0.95)),
            p99_ms: ms(self.0.value_at_quantile(0.99)),
            p999_ms: ms(self.0.value_at_quantile(0.999)),
            p9999_ms: ms(self.0.value_at_quantile(0.9999)),
            max_ms: ms(self.0.max()),
        }
    }

    pub fn quantile_ms(&self, quantile: f64) -> f64 {
        self.0.value_at_quantile(quantile) as f64 / 1e6
    }

    /// Returns the share of the values above a bound, within the precision of the buckets; 0 if there are no values.
    pub fn share_above(&self, nanoseconds: u64) -> f64 {
        let bound = nanoseconds.clamp(LOW_NS, HIGH_NS);
        let below = self.0.count_between(0, bound);
        match self.0.len() {
            0 => 0.0,
            all => all.saturating_sub(below) as f64 / all as f64,
        }
    }

    /// Returns the upper bound in milliseconds and the count of every non-empty bucket, for a chart.
    pub fn buckets(&self) -> Vec<(f64, u64)> {
        let buckets = self.0.iter_log(LOW_NS, 1.2);
        let filled = buckets.filter(|bucket| bucket.count_since_last_iteration() > 0);
        filled
            .map(|bucket| {
                (
                    bucket.value_iterated_to() as f64 / 1e6,
                    bucket.count_since_last_iteration(),
                )
            })
            .collect()
    }
}

/// The figures of a histogram that tables show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Latency {
    pub count: u64,
    pub min_ms: f64,
    pub mean_ms: f64,
    pub stdev_ms: f64,
    pub p50_ms: f64,
    pub p90_ms: f64,
    pub p95_ms: f64,
    pub p99_ms: f64,
    pub p999_ms: f64,
    pub p9999_ms: f64,
    pub max_ms: f64,
}

/// Encodes the histogram in HdrHistogram's V2 format in base64, which its other implementations read.
impl Serialize for Histogram {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        use base64ct::{Base64, Encoding};
        let mut bytes = Vec::new();
        V2Serializer::new()
            .serialize(&self.0, &mut bytes)
            .map_err(|error| S::Error::custom(format!("{error:?}")))?;
        serializer.serialize_str(&Base64::encode_string(&bytes))
    }
}

impl<'de> Deserialize<'de> for Histogram {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Histogram, D::Error> {
        use base64ct::{Base64, Encoding};
        let text = String::deserialize(deserializer)?;
        let bytes = Base64::decode_vec(&text).map_err(D::Error::custom)?;
        let read: hdrhistogram::Histogram<u64> = HdrDeserializer::new()
            .deserialize(&mut bytes.as_slice())
            .map_err(|error| D::Error::custom(format!("{error:?}")))?;
        let mut histogram = Histogram::default();
        histogram.0.add(&read).map_err(D::Error::custom)?;
        Ok(histogram)
    }
}

#[cfg(test)]
mod tests {
    use super::Histogram;

    #[test]
    fn histogram_after_json_round_trip_is_equal() {
        let mut histogram = Histogram::default();
        for n in 1..10_000u64 {
            histogram.record(n * 1_000);
        }
        let text = serde_json::to_string(&histogram).unwrap();
        let back: Histogram = serde_json::from_str(&text).unwrap();
        assert_eq!(back, histogram);
    }

    #[test]
    fn summary_of_empty_histogram_is_zero() {
        assert_eq!(Histogram::default().summary(), super::Latency::default());
    }
}
