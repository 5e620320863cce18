//! A scenario whose messages a rule takes to Kafka: makes connector, action and rule over the broker's API, and counts in Kafka what
//! has arrived, by partition.
//!
//! The count is that of the offsets: what stands between the end of each partition before the run and after it. It has to
//! be what publishers saw acknowledged. Nobody else may write to the Kafka topic meanwhile.

mod api;
mod ceiling;
mod offsets;

use std::thread;
use std::time::{Duration, Instant};

use crate::output;
use crate::result::{KafkaResult, RunResult, Verdict};
use crate::scenario::{Payload, Scenario, ToKafka};
use api::Definitions;
pub use api::Login;
use offsets::Offsets;

const LOOK_EVERY: Duration = Duration::from_millis(100);
/// What publishers were not told of may still come.
const SETTLED: Duration = Duration::from_secs(1);

/// Where Kafka is, and how the broker is told.
#[derive(Clone, Debug)]
pub struct Access {
    /// As librdkafka takes it: `host:port,…`.
    pub bootstrap_hosts: String,
    /// None: the broker has connector, action and rule already.
    pub login: Option<Login>,
}

/// A run's way to Kafka, from before its first message to its count.
pub struct Bridge {
    access: Access,
    to: ToKafka,
    drain: Duration,
    offsets: Offsets,
    before: Vec<u64>,
    definitions: Option<Definitions>,
}

impl Bridge {
    /// Everything is in force when it returns.
    pub fn build(scenario: &Scenario, to: &ToKafka, access: &Access, run: u16) -> Result<Bridge, String> {
        let offsets = Offsets::of(&access.bootstrap_hosts, &to.kafka_topic, to.partitions)?;
        let before = offsets.read()?;
        let definitions = match &access.login {
            None => None,
            Some(login) => Some(Definitions::make(login, to, &access.bootstrap_hosts, run)?),
        };
        Ok(Bridge {
            access: access.clone(),
            to: to.clone(),
            drain: Duration::from_secs_f64(scenario.drain_s),
            offsets,
            before,
            definitions,
        })
    }

    /// Waits until Kafka has what was acknowledged, or nothing more comes, and adds the count to the result.
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
            action: self.definitions.as_ref().map(Definitions::metrics).unwrap_or_default(),
            producer: None,
        };
        result.verdicts.push(verdict(&found, result.totals.published));
        match &self.definitions {
            Some(definitions) if records >= acknowledged => definitions.remove(),
            Some(definitions) => output::complain(definitions.left_over()),
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

    /// By partition, and when the last that was acknowledged was there, if it was.
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

fn verdict(found: &KafkaResult, published: u64) -> Verdict {
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
    Verdict {
        rule: "Kafka has what was acknowledged".into(),
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
    fn the_count_is_judged_by_what_was_acknowledged_and_published() {
        for (acknowledged, records, published, is_met, said) in [
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
            assert!(verdict.is_met == is_met && verdict.found.contains(said), "{verdict:?}");
        }
    }
}
