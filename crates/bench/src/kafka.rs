//! A scenario whose messages a rule sends to Kafka: creates connector, action and rule over the broker's API, and
//! counts the records that arrive in Kafka, by partition.
//!
//! The count is the difference of the end offsets of each partition before and after the run. It must equal the number
//! of acknowledged publishes. No other producer may write to the Kafka topic during the run.

mod api;
mod ceiling;
mod offsets;

use std::thread;
use std::time::{Duration, Instant};

use crate::output;
use crate::result::{KafkaResult, RunResult, ThresholdVerdict};
use crate::scenario::{Payload, Scenario, ToKafka};
pub use api::BrokerLogin;
use api::RunDefinitions;
use offsets::Offsets;

const LOOK_EVERY: Duration = Duration::from_millis(100);
/// Time without new records after which no more are expected. Publishes without an acknowledgement may arrive until
/// then.
const SETTLED: Duration = Duration::from_secs(1);

/// The address of Kafka and the login to the broker's API.
#[derive(Clone, Debug)]
pub struct KafkaAccess {
    /// Bootstrap servers in librdkafka's format: `host:port,…`.
    pub bootstrap_hosts: String,
    /// `None` if the broker has connector, action and rule already.
    pub login: Option<BrokerLogin>,
}

/// The definitions and offsets of a run that sends to Kafka: made before its first message, concluded with the count.
pub struct KafkaRun {
    access: KafkaAccess,
    to: ToKafka,
    drain: Duration,
    offsets: Offsets,
    before: Vec<u64>,
    definitions: Option<RunDefinitions>,
}

impl KafkaRun {
    /// Creates the definitions. They are in force when this returns.
    pub fn build(scenario: &Scenario, to: &ToKafka, access: &KafkaAccess, run: u16) -> Result<KafkaRun, String> {
        let offsets = Offsets::of(&access.bootstrap_hosts, &to.kafka_topic, to.partitions)?;
        let before = offsets.read()?;
        let definitions = match &access.login {
            None => None,
            Some(login) => Some(RunDefinitions::make(login, to, &access.bootstrap_hosts, run)?),
        };
        Ok(KafkaRun {
            access: access.clone(),
            to: to.clone(),
            drain: Duration::from_secs_f64(scenario.drain_s),
            offsets,
            before,
            definitions,
        })
    }

    /// Waits until Kafka has the acknowledged messages, or no more records arrive, and adds the count to the result.
    pub fn conclude(self, result: &mut RunResult, measures_ceiling: bool) -> Result<(), String> {
        let acknowledged = result.totals.acknowledged - result.totals.refused.min(result.totals.acknowledged);
        let (by_partition, all_there_s) = self.wait(acknowledged)?;
        let records = by_partition.iter().sum();
        let mut found = KafkaResult {
            kafka_topic: self.to.kafka_topic.clone(),
            acknowledged,
            records,
            by_partition,
            all_there_s,
            action: self
                .definitions
                .as_ref()
                .map(RunDefinitions::metrics)
                .unwrap_or_default(),
            producer: None,
        };
        result.verdicts.push(verdict(&found, result.totals.published));
        match &self.definitions {
            Some(definitions) if records >= acknowledged => definitions.remove(),
            Some(definitions) => output::error(definitions.describe()),
            None => {}
        }
        if measures_ceiling {
            let bytes = payload_bytes(&result.scenario);
            found.producer = Some(ceiling::measure(
                &self.access.bootstrap_hosts,
                &self.to.kafka_topic,
                bytes,
            )?);
        }
        result.kafka = Some(found);
        Ok(())
    }

    /// Returns the records by partition, and the time until all acknowledged messages had arrived, if they did.
    fn wait(&self, acknowledged: u64) -> Result<(Vec<u64>, Option<f64>), String> {
        let started = Instant::now();
        let (mut seen, mut changed, mut all_there_s) = (0, started, None);
        loop {
            let ends = self.offsets.read()?;
            let arrived: Vec<u64> = ends
                .iter()
                .zip(&self.before)
                .map(|(end, before)| end.saturating_sub(*before))
                .collect();
            let sum: u64 = arrived.iter().sum();
            if sum != seen {
                (seen, changed) = (sum, Instant::now());
            }
            if sum >= acknowledged && all_there_s.is_none() {
                all_there_s = Some(started.elapsed().as_secs_f64());
            }
            let patience = if all_there_s.is_some() { SETTLED } else { self.drain };
            if changed.elapsed() >= patience {
                return Ok((arrived, all_there_s));
            }
            thread::sleep(LOOK_EVERY);
        }
    }
}

fn verdict(found: &KafkaResult, published: u64) -> ThresholdVerdict {
    let KafkaResult {
        acknowledged, records, ..
    } = *found;
    let difference = match records.cmp(&acknowledged) {
        std::cmp::Ordering::Equal => "exactly these".to_owned(),
        std::cmp::Ordering::Less => format!("{} missing", acknowledged - records),
        std::cmp::Ordering::Greater => format!(
            "{} more ({} were published without an acknowledgement)",
            records - acknowledged,
            published.saturating_sub(acknowledged)
        ),
    };
    ThresholdVerdict {
        rule: "Kafka has the acknowledged messages".into(),
        found: format!("{acknowledged} acknowledged, {records} in Kafka: {difference}"),
        is_met: (acknowledged..=published.max(acknowledged)).contains(&records),
    }
}

fn payload_bytes(scenario: &Scenario) -> usize {
    let mut payloads = scenario.group.iter().filter_map(|group| group.publish.as_ref());
    payloads
        .find_map(|publish| match publish.payload {
            Payload::Bytes(bytes) => Some(bytes as usize),
            _ => None,
        })
        .unwrap_or(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn verdict_compares_with_acknowledged_and_published() {
        for (acknowledged, records, published, is_met, text) in [
            (10, 10, 10, true, "exactly these"),
            (10, 9, 10, false, "1 missing"),
            (10, 11, 12, true, "1 more (2 were published"),
            (10, 13, 12, false, "3 more"),
        ] {
            let found = KafkaResult {
                acknowledged,
                records,
                ..KafkaResult::default()
            };
            let verdict = verdict(&found, published);
            assert!(verdict.is_met == is_met && verdict.found.contains(text), "{verdict:?}");
        }
    }
}
