//! The devices of a demonstration at work: each has a connection, and says each second how it is.

use std::f64::consts::TAU;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

use mqtt::{Connect, Decoded, Packet, Properties, ProtocolVersion, Publish, QoS, decode};
use mqtt_client::{ClientSession, SessionEvent};
use serde_json::{Value, json};

const EVERY: Duration = Duration::from_secs(1);
const PATIENCE: Duration = Duration::from_secs(5);
const KEEP_ALIVE_S: u16 = 60;
/// The platform sends devices nothing that is larger.
const PACKET_BYTES_MAX: usize = 1 << 20;
const VERSION: ProtocolVersion = ProtocolVersion::V3_1_1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DemoDeviceKind {
    ColdStore,
    Meter,
}

#[derive(Clone, Debug)]
pub struct DemoDevice {
    pub kind: DemoDeviceKind,
    /// From 1.
    pub number: u32,
    pub token: String,
}

/// Runs until `is_stopping` is true.
pub fn run(server: SocketAddr, devices: Vec<DemoDevice>, is_stopping: &AtomicBool) -> Result<(), String> {
    let mut connections: Vec<(DemoDevice, Option<DemoConnection>)> =
        devices.into_iter().map(|device| (device, None)).collect();
    let began = Instant::now();
    let mut next = began;
    while !is_stopping.load(Relaxed) {
        for (device, connection) in &mut connections {
            let seconds = began.elapsed().as_secs_f64();
            let said = send_values(server, device, connection, seconds);
            if let Err(error) = said {
                // It is tried again a second later.
                tracing::debug!(device = device.token, %error, "a simulated device lost its connection");
                *connection = None;
            }
        }
        next += EVERY;
        while !is_stopping.load(Relaxed) && Instant::now() < next {
            thread::park_timeout(next.saturating_duration_since(Instant::now()));
        }
    }
    for (_, connection) in &mut connections {
        if let Some(connection) = connection {
            // The server ends connections that are not ended.
            let _ = connection.end();
        }
    }
    Ok(())
}

fn send_values(
    server: SocketAddr,
    device: &DemoDevice,
    connection: &mut Option<DemoConnection>,
    seconds: f64,
) -> io::Result<()> {
    let connection = match connection {
        Some(connection) => connection,
        None => {
            let mut opened = DemoConnection::open(server, device)?;
            opened.publish("v1/devices/me/attributes", &device.attributes())?;
            connection.insert(opened)
        }
    };
    connection.skip_received()?;
    connection.publish("v1/devices/me/telemetry", &device.telemetry(seconds))
}

impl DemoDevice {
    fn attributes(&self) -> Value {
        let model = match self.kind {
            DemoDeviceKind::ColdStore => "CS-200",
            DemoDeviceKind::Meter => "WM-15",
        };
        json!({"model": model, "firmware": "1.4.2", "serial": 1000 + self.number})
    }

    /// So many seconds after the beginning. Every store is too warm once in a minute and a half, at a time of its own.
    fn telemetry(&self, seconds: f64) -> Value {
        let phase = f64::from(self.number) / 6.0;
        let wave = |period_s: f64| (TAU * (seconds / period_s + phase)).sin();
        let rounded = |value: f64| (value * 100.0).round() / 100.0;
        match self.kind {
            DemoDeviceKind::ColdStore => json!({
                "temperature": rounded(5.5 + 3.4 * wave(90.0) + 0.15 * wave(7.0)),
                "humidity": rounded(60.0 + 8.0 * wave(130.0)),
                "doorOpen": wave(45.0) > 0.8,
            }),
            DemoDeviceKind::Meter => {
                // A battery falls from full to empty in two minutes, and is changed.
                let battery = 100.0 - 100.0 * (seconds / 120.0 + 0.45 + phase).fract();
                json!({
                    "pulseCounter": (seconds * 3.0) as u64 + 10_000 * u64::from(self.number),
                    "flow": rounded(20.0 + 25.0 * wave(75.0).powi(3)),
                    "batteryLevel": battery.round() as u64,
                })
            }
        }
    }
}

struct DemoConnection {
    stream: TcpStream,
    session: ClientSession<()>,
    input: Vec<u8>,
    out: Vec<u8>,
}

impl DemoConnection {
    fn open(server: SocketAddr, device: &DemoDevice) -> io::Result<DemoConnection> {
        let stream = TcpStream::connect_timeout(&server, PATIENCE)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        let mut connection = DemoConnection {
            stream,
            session: ClientSession::new(VERSION, 1),
            input: Vec::new(),
            out: Vec::new(),
        };
        let connect = Connect {
            version: VERSION,
            clean_start: true,
            is_bridge: false,
            // Values are sent far more often than this, so that PINGREQ is never due.
            keep_alive: KEEP_ALIVE_S,
            properties: Properties::default(),
            client_id: &device.token,
            will: None,
            user_name: Some(&device.token),
            password: None,
        };
        connection.session.connect(connect, 0, &mut connection.out);
        connection.flush()?;
        while !connection.session.is_accepted() {
            connection.read()?;
        }
        Ok(connection)
    }

    fn publish(&mut self, topic: &str, body: &Value) -> io::Result<()> {
        let body = body.to_string();
        let publish = Publish {
            dup: false,
            qos: QoS::AtMostOnce,
            retain: false,
            topic,
            packet_id: None,
            properties: Properties::default(),
            payload: body.as_bytes(),
        };
        Packet::Publish(publish).encode(VERSION, &mut self.out);
        self.flush()
    }

    fn end(&mut self) -> io::Result<()> {
        self.session.disconnect(Properties::default(), &mut self.out);
        self.flush()
    }

    fn flush(&mut self) -> io::Result<()> {
        let written = self.stream.write_all(&self.out);
        self.out.clear();
        written
    }

    /// Handles packets that have arrived. Detects a closed connection.
    fn skip_received(&mut self) -> io::Result<()> {
        self.stream.set_nonblocking(true)?;
        let end = loop {
            if let Err(error) = self.read() {
                break error;
            }
        };
        self.stream.set_nonblocking(false)?;
        match end.kind() {
            ErrorKind::WouldBlock => self.flush(),
            _ => Err(end),
        }
    }

    /// Reads once. A device has no subscriptions, so that messages need no attention.
    fn read(&mut self) -> io::Result<()> {
        let mut part = [0; 512];
        let size = self.stream.read(&mut part)?;
        if size == 0 {
            return Err(ErrorKind::ConnectionReset.into());
        }
        self.input.extend_from_slice(&part[..size]);
        let mut at = 0;
        while let Decoded::Complete { packet, size } =
            decode(&self.input[at..], VERSION, PACKET_BYTES_MAX).map_err(|error| io::Error::other(error.to_string()))?
        {
            at += size;
            match self.session.handle(packet, &mut self.out) {
                Ok(SessionEvent::Rejected(connack)) => {
                    let reason = connack.reason.name();
                    return Err(io::Error::other(format!("the server refuses the connection: {reason}")));
                }
                Ok(_) => {}
                Err(violation) => return Err(io::Error::other(violation.to_string())),
            }
        }
        self.input.drain(..at);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn device(kind: DemoDeviceKind, number: u32) -> DemoDevice {
        DemoDevice {
            kind,
            number,
            token: String::new(),
        }
    }

    /// Each condition of the alarm rules becomes true and false again within two minutes.
    #[test]
    fn every_device_raises_its_alarms_and_clears_them() {
        let over = |kind, number, key: &str, high: f64, low: f64| {
            let values: Vec<f64> = (0..120)
                .map(|second| device(kind, number).telemetry(f64::from(second))[key].as_f64().unwrap())
                .collect();
            values.iter().any(|value| *value > high) && values.iter().any(|value| *value < low)
        };
        for number in 1..=6 {
            assert!(
                over(DemoDeviceKind::ColdStore, number, "temperature", 8.6, 6.0),
                "store {number}"
            );
        }
        for number in 1..=4 {
            assert!(
                over(DemoDeviceKind::Meter, number, "batteryLevel", 20.0, 20.0),
                "meter {number}"
            );
            assert!(
                over(DemoDeviceKind::Meter, number, "flow", 40.0, 30.0),
                "meter {number}"
            );
        }
    }

    #[test]
    fn somebody_raises_an_alarm_in_the_first_seconds() {
        let is_low = |number| {
            (0..10).any(|second| {
                let said = device(DemoDeviceKind::Meter, number).telemetry(f64::from(second));
                said["batteryLevel"].as_f64().unwrap() <= 20.0
            })
        };
        assert!((1..=4).any(is_low));
    }
}
