//! Keep Alive of one connection [MQTT-3.1.2-20]. Times are nanoseconds since an origin of the caller.

#[derive(Clone, Copy, Debug, Default)]
pub struct KeepAlive {
    /// 0 if keep alive is off.
    interval_ns: u64,
    last_sent_ns: u64,
    /// When the PINGREQ without a response was sent.
    ping_sent_ns: Option<u64>,
}

impl KeepAlive {
    pub(crate) fn start(&mut self, interval_s: u16, now_ns: u64) {
        *self = KeepAlive {
            last_sent_ns: now_ns,
            ..KeepAlive::default()
        };
        self.set_interval(interval_s);
    }

    pub(crate) fn set_interval(&mut self, interval_s: u16) {
        self.interval_ns = u64::from(interval_s) * 1_000_000_000;
    }

    pub fn interval_ns(&self) -> u64 {
        self.interval_ns
    }

    pub fn ping_sent_ns(&self) -> Option<u64> {
        self.ping_sent_ns
    }

    /// Records that bytes were sent to the server.
    #[inline]
    pub fn record_sent(&mut self, now_ns: u64) {
        self.last_sent_ns = now_ns;
    }

    /// Records a sign of life of the server.
    #[inline]
    pub fn record_response(&mut self) {
        self.ping_sent_ns = None;
    }

    /// Returns when to send PINGREQ: early enough for it to arrive within the interval.
    pub fn ping_due_ns(&self) -> Option<u64> {
        let is_idle = self.interval_ns > 0 && self.ping_sent_ns.is_none();
        is_idle.then(|| self.last_sent_ns + self.interval_ns / 4 * 3)
    }

    /// Returns when a missing PINGRESP means that the connection is lost.
    pub fn response_due_ns(&self) -> Option<u64> {
        self.ping_sent_ns.map(|sent_ns| sent_ns + self.interval_ns)
    }

    pub(crate) fn record_ping(&mut self, now_ns: u64) {
        self.ping_sent_ns = Some(now_ns);
        self.last_sent_ns = now_ns;
    }
}
