//! The broker's cost over a run. The gauge is read at the beginning, every second, and at both ends of the measured
//! time.

use crate::observe::{BrokerUsage, UsageSource};
use crate::result::{BrokerCost, Second};

pub struct Broker {
    gauge: Option<Box<dyn UsageSource>>,
    before: BrokerUsage,
    /// The last reading with its time on the run clock.
    last: Option<(u64, BrokerUsage)>,
    begin: Option<(u64, BrokerUsage)>,
    end: Option<(u64, BrokerUsage)>,
    resident_peak_bytes: Option<u64>,
    /// Why the gauge failed; it is then read no more.
    pub failure: Option<String>,
}

impl Broker {
    /// Reads the gauge for the first time, before any client connects.
    pub fn new(gauge: Option<Box<dyn UsageSource>>, now_ns: u64) -> Broker {
        let mut broker = Broker {
            gauge,
            before: BrokerUsage::default(),
            last: None,
            begin: None,
            end: None,
            resident_peak_bytes: None,
            failure: None,
        };
        if let Some(usage) = broker.read() {
            broker.before = usage;
            broker.last = Some((now_ns, usage));
        }
        broker
    }

    fn read(&mut self) -> Option<BrokerUsage> {
        match self.gauge.as_mut()?.read() {
            Ok(usage) => {
                let read = usage.resident_bytes.max(usage.resident_peak_bytes);
                self.resident_peak_bytes = self.resident_peak_bytes.max(read);
                Some(usage)
            }
            Err(reason) => {
                self.failure = Some(reason);
                self.gauge = None;
                None
            }
        }
    }

    /// Records the beginning of the measured time.
    pub fn begin(&mut self, now_ns: u64) {
        if self.begin.is_none() {
            self.begin = self.read().map(|usage| (now_ns, usage));
        }
    }

    /// Records the end of the measured time.
    pub fn end(&mut self, now_ns: u64) {
        if self.end.is_none() {
            self.end = self.read().map(|usage| (now_ns, usage));
        }
    }

    /// Adds to a second what the broker has used since the last one.
    pub fn second(&mut self, now_ns: u64, second: &mut Second) {
        let Some(usage) = self.read() else { return };
        if let Some((then_ns, then)) = self.last.replace((now_ns, usage)) {
            let seconds = now_ns.saturating_sub(then_ns) as f64 / 1e9;
            second.broker_cores = (seconds > 0.0).then(|| (usage.cpu_s - then.cpu_s) / seconds);
        }
        second.broker_resident_bytes = usage.resident_bytes;
    }

    /// Computes the cost; `delivered` and `published` are counts of the measured time.
    pub fn cost(&mut self, delivered: u64, published: u64, now_ns: u64) -> Option<BrokerCost> {
        self.begin(now_ns);
        self.end(now_ns);
        let ((begin_ns, begin), (end_ns, end)) = (self.begin?, self.end?);
        let gauge = self.gauge.as_ref()?;
        let seconds = end_ns.saturating_sub(begin_ns) as f64 / 1e9;
        let cpu = end.cpu_s - begin.cpu_s;
        let spent = |begin: Option<f64>, end: Option<f64>| begin.zip(end).map(|(begin, end)| end - begin);
        let made = |begin: Option<u64>, end: Option<u64>| begin.zip(end).map(|(begin, end)| end.saturating_sub(begin));
        let messages = if delivered > 0 { delivered } else { published };
        Some(BrokerCost {
            pid: gauge.pid(),
            name: gauge.name().into(),
            cores_used: if seconds > 0.0 { cpu / seconds } else { 0.0 },
            user_s: spent(begin.user_s, end.user_s),
            system_s: spent(begin.system_s, end.system_s),
            cpu_s_per_million: if messages > 0 { cpu * 1e6 / messages as f64 } else { 0.0 },
            resident_before_bytes: self.before.resident_bytes,
            resident_bytes: end.resident_bytes,
            resident_peak_bytes: self.resident_peak_bytes,
            voluntary_switches: made(begin.voluntary_switches, end.voluntary_switches),
            involuntary_switches: made(begin.involuntary_switches, end.involuntary_switches),
        })
    }
}
