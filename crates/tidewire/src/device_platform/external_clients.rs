//! How messages of rule chains get to other systems: each tenant's over connections of its own, made when they are
//! first needed.
//!
//! Requests to a server go side by side; records for Kafka and messages for a broker keep the order in which chains
//! sent them. How many are on their way is bounded by the platform, which also gives up what takes too long.
//!
//! Tenants define where their chains connect. So every connection is checked against the networks that the server's
//! administrator allows (`trust::Targets`). That includes chains that a system administrator of the platform has saved:
//! any tenant administrator can change them later.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;
use std::io;
use std::net::Ipv6Addr;
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use connectors::http::{HttpConnector, HttpConnectorConfig, HttpQuestion, UrlPart};
use connectors::kafka::{Authentication, KafkaConnectorConfig, KafkaProducer, KafkaTls};
use connectors::mqtt::{
    MqttActionConfig, MqttConnector, MqttConnectorConfig, MqttSink, MqttVersion, PublishUserProperties,
};
use connectors::{RetryConfig, Secret, Sink, TlsConfig, sample};
use devices::{ExternalReceipt, ExternalRequest, ExternalSender};
use platform::chain::{
    ExternalAnswer, ExternalCall, ExternalError, KafkaRecord, KafkaServer, MqttMessage, MqttServer, RestCall,
};
use platform::ids::TenantId;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::mpsc;
use tokio::time::timeout;
use trust::{TargetPolicy, Targets};

/// Servers of one kind that are known at the same time, of all tenants; the one that was needed longest ago makes room.
const SERVERS_MAX: usize = 256;
/// Requests to one server at the same time, of one tenant.
const REQUESTS_MAX: u32 = 16;
const CONNECT_TIMEOUT_MS: u64 = 10_000;
const IDLE_TIMEOUT_MS: u64 = 30_000;
/// Messages that wait for one broker, of one tenant.
const MESSAGES_MAX: usize = 10_000;
/// Maximum number of messages that are sent to a broker together.
const BATCH_MAX: usize = 100;
/// An unused connection to a broker is closed after this time.
const IDLE: Duration = Duration::from_secs(60);
/// How long Kafka may take for a record.
const RECORD_MS: u64 = 30_000;
/// How long a Kafka cluster with a refused broker is not asked again: its producers are expensive to make.
const REFUSED_PAUSE: Duration = Duration::from_secs(30);

pub struct ExternalClients {
    runtime: Option<Runtime>,
    policy: Arc<TargetPolicy>,
    http: Mutex<ClientCache<(TenantId, String), Arc<HttpConnector>>>,
    kafka: Mutex<ClientCache<(TenantId, KafkaServer), Producer>>,
    mqtt: Mutex<ClientCache<(TenantId, MqttServer), BrokerQueue>>,
}

type Producer = Arc<BackgroundDrop<KafkaProducer>>;

/// Key of a broker connection.
type BrokerQueue = mpsc::Sender<(MqttMessage, ExternalReceipt)>;

/// Ends a client on a separate thread, because that can take long, and the last reference may be dropped by the thread
/// that reads the ingest log.
struct BackgroundDrop<T: Send + 'static> {
    value: Option<T>,
    threads: Handle,
}

impl<T: Send + 'static> BackgroundDrop<T> {
    fn new(value: T, runtime: &Runtime) -> BackgroundDrop<T> {
        BackgroundDrop {
            value: Some(value),
            threads: runtime.handle().clone(),
        }
    }
}

impl<T: Send + 'static> Deref for BackgroundDrop<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.value.as_ref().expect("it is taken when it is dropped")
    }
}

impl<T: Send + 'static> Drop for BackgroundDrop<T> {
    fn drop(&mut self) {
        let value = self.value.take();
        self.threads.spawn_blocking(move || drop(value));
    }
}

/// Clients by key, with the time of their last use.
struct ClientCache<K, V> {
    all: HashMap<K, (V, u64)>,
    needed: u64,
}

impl<K, V> Default for ClientCache<K, V> {
    fn default() -> ClientCache<K, V> {
        ClientCache {
            all: HashMap::new(),
            needed: 0,
        }
    }
}

impl<K: Hash + Eq + Clone, V: Clone> ClientCache<K, V> {
    fn get(&mut self, key: K, make: impl FnOnce() -> Result<V, String>) -> Result<V, String> {
        self.needed += 1;
        if let Some((value, needed)) = self.all.get_mut(&key) {
            *needed = self.needed;
            return Ok(value.clone());
        }
        let value = make()?;
        if self.all.len() >= SERVERS_MAX {
            let oldest = self.all.iter().min_by_key(|(_, (_, needed))| *needed);
            let oldest = oldest.map(|(key, _)| key.clone());
            oldest.and_then(|oldest| self.all.remove(&oldest));
        }
        self.all.insert(key, (value.clone(), self.needed));
        Ok(value)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl ExternalClients {
    pub fn start(policy: TargetPolicy) -> io::Result<ExternalClients> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("outward")
            .enable_all()
            .build()?;
        Ok(ExternalClients {
            runtime: Some(runtime),
            policy: Arc::new(policy),
            http: Mutex::default(),
            kafka: Mutex::default(),
            mqtt: Mutex::default(),
        })
    }

    fn runtime(&self) -> Result<&Runtime, String> {
        self.runtime.as_ref().ok_or_else(|| "the server is ending".to_owned())
    }

    fn targets(&self, tenant: TenantId, node: &'static str) -> Targets {
        Targets::new(&self.policy, &tenant.to_string(), node)
    }

    fn call(&self, tenant: TenantId, call: RestCall, receipt: ExternalReceipt) -> Result<(), String> {
        let key = (tenant, call.server.clone());
        let targets = self.targets(tenant, "REST API call");
        let connector = lock(&self.http).get(key, || http_connector(&call.server, targets))?;
        let question = HttpQuestion {
            path: call.path.into_iter().map(url_part).collect(),
            method: call.method,
            headers: call.headers,
            body: call.body.unwrap_or_default().into_bytes(),
            timeout: Duration::from_millis(call.timeout_ms),
            answer_bytes_max: call.answer_bytes_max,
        };
        self.runtime()?.spawn(async move {
            receipt.complete(match connector.ask(question).await {
                Ok(answer) => to_answer(answer),
                Err(problem) => Err(ExternalError::new(problem)),
            });
        });
        Ok(())
    }

    fn produce(&self, tenant: TenantId, record: KafkaRecord, receipt: ExternalReceipt) -> Result<(), String> {
        let key = (tenant, record.server.clone());
        let runtime = self.runtime()?;
        let make = || {
            let producer = kafka_producer(&record.server, self.targets(tenant, "Kafka"))?;
            Ok(Arc::new(BackgroundDrop::new(producer, runtime)))
        };
        let producer = {
            let mut known = lock(&self.kafka);
            let refused = known.all.get(&key).and_then(|(producer, _)| producer.refusal());
            match refused {
                Some(refused) if refused.at.elapsed() < REFUSED_PAUSE => return Err(refused.reason),
                Some(_) => drop(known.all.remove(&key)),
                None => {}
            }
            known.get(key, make)?
        };
        let sent = producer.send(&record.topic, record.key.as_deref(), &record.value, &record.headers)?;
        runtime.spawn(async move {
            let sent = tokio::select! {
                sent = sent => sent,
                refused = producer.refused() => Ok(Err(refused.reason)),
            };
            let said = match sent {
                Ok(Ok((partition, offset))) => Ok(ExternalAnswer {
                    data: None,
                    metadata: vec![
                        ("offset".to_owned(), offset.to_string()),
                        ("partition".to_owned(), partition.to_string()),
                        ("topic".to_owned(), record.topic),
                    ],
                }),
                // A refusal drops the records of all tasks, and says why.
                Ok(Err(problem)) => Err(ExternalError::new(
                    producer.refusal().map_or(problem, |refused| refused.reason),
                )),
                Err(_) => Err(ExternalError::new("the producer has ended")),
            };
            receipt.complete(said);
        });
        Ok(())
    }

    fn publish(&self, tenant: TenantId, message: MqttMessage, receipt: ExternalReceipt) -> Result<(), String> {
        let runtime = self.runtime()?;
        let key = (tenant, message.server.clone());
        let mut known = lock(&self.mqtt);
        if known.all.get(&key).is_none_or(|(queue, _)| queue.is_closed()) {
            // A node that was changed is the same client: the broker has one of that name.
            known.all.retain(|(of, server), (queue, _)| {
                !queue.is_closed() && (*of != tenant || !is_same_client(server, &message.server))
            });
        }
        let queue = known.get(key, || {
            let _inside = runtime.enter();
            let sink = mqtt_sink(&message.server, self.targets(tenant, "MQTT"))?;
            let (sender, receiver) = mpsc::channel(MESSAGES_MAX);
            runtime.spawn(publish_all(sink, receiver));
            Ok(sender)
        })?;
        queue
            .try_send((message, receipt))
            .map_err(|_| "too many messages wait for the broker".to_owned())
    }
}

impl Drop for ExternalClients {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl ExternalSender for ExternalClients {
    fn take(&self, parcel: ExternalRequest) -> Result<(), String> {
        let ExternalRequest {
            tenant,
            outbound,
            receipt,
        } = parcel;
        match outbound {
            ExternalCall::Rest(call) => self.call(tenant, call, receipt),
            ExternalCall::Kafka(record) => self.produce(tenant, record, receipt),
            ExternalCall::Mqtt(message) => self.publish(tenant, message, receipt),
        }
    }

    fn refused_targets_total(&self) -> u64 {
        self.policy.rejected_total()
    }
}

fn url_part(part: platform::chain::RestUrlPart) -> UrlPart<String, String> {
    match part {
        platform::chain::RestUrlPart::Literal(text) => UrlPart::Literal(text),
        platform::chain::RestUrlPart::Value(value) => UrlPart::Value(Some(value)),
    }
}

fn http_connector(base: &str, targets: Targets) -> Result<Arc<HttpConnector>, String> {
    let config = HttpConnectorConfig {
        url: base.to_owned(),
        headers: BTreeMap::new(),
        connections_max: REQUESTS_MAX,
        connect_timeout_ms: CONNECT_TIMEOUT_MS,
        idle_timeout_ms: IDLE_TIMEOUT_MS,
        tls: TlsConfig::default(),
    };
    let connector = HttpConnector::with_targets(&config, Some(targets));
    connector.map(Arc::new).map_err(|problems| problems.join("; "))
}

/// In the words of ThingsBoard's metadata.
fn to_answer(answer: connectors::http::HttpAnswer) -> Result<ExternalAnswer, ExternalError> {
    let body = String::from_utf8_lossy(&answer.body).into_owned();
    let word: String = answer
        .reason
        .chars()
        .map(|letter| {
            if letter.is_ascii_alphanumeric() {
                letter.to_ascii_uppercase()
            } else {
                '_'
            }
        })
        .collect();
    let mut metadata = vec![
        ("status".to_owned(), word),
        ("statusCode".to_owned(), answer.status.to_string()),
        ("statusReason".to_owned(), answer.reason.to_owned()),
    ];
    let is_good = (200..300).contains(&answer.status);
    if !is_good {
        metadata.push(("error_body".to_owned(), body.clone()));
    }
    metadata.extend(answer.headers);
    if !is_good {
        let error = format!("{} {}", answer.status, answer.reason);
        return Err(ExternalError { error, metadata });
    }
    let data = match body.as_str() {
        "" => serde_json::json!({}),
        body => serde_json::from_str(body).unwrap_or_else(|_| body.into()),
    };
    Ok(ExternalAnswer {
        data: Some(data),
        metadata,
    })
}

/// One batch after the other, so that messages keep their order. Ends with the last of those that send.
async fn publish_all(sink: MqttSink, mut receiver: mpsc::Receiver<(MqttMessage, ExternalReceipt)>) {
    let mut parcels = Vec::new();
    // Messages that are sent while there is no connection fail immediately; the first ones wait for the connection.
    let connected = sink.check().await;
    if let Err(problem) = &connected {
        tracing::info!(problem, "cannot reach the broker of a rule chain node");
    }
    loop {
        match timeout(IDLE, receiver.recv_many(&mut parcels, BATCH_MAX)).await {
            Ok(0) => break,
            Ok(_) => {}
            Err(_) => {
                // Messages that arrived in the meantime are still sent before the end.
                receiver.close();
                continue;
            }
        }
        let fields: Vec<[Option<&[u8]>; 4]> = parcels
            .iter()
            .map(|(message, _)| {
                let retain: &[u8] = if message.is_retained { b"true" } else { b"false" };
                [
                    Some(message.topic.as_bytes()),
                    Some(message.payload.as_bytes()),
                    Some(b"1"),
                    Some(retain),
                ]
            })
            .collect();
        let fields: Vec<&[Option<&[u8]>]> = fields.iter().map(|fields| &fields[..]).collect();
        let records = sample(0, &fields);
        let outcome = sink.send(&records).await;
        for ((_, receipt), result) in parcels.drain(..).zip(outcome) {
            let said = result.map(|()| ExternalAnswer::default());
            receipt.complete(said.map_err(|failure| ExternalError::new(failure.reason())));
        }
    }
}

/// Whether a broker would take one for the other.
fn is_same_client(one: &MqttServer, other: &MqttServer) -> bool {
    let name = |server: &MqttServer| (server.host.clone(), server.port, server.client_id.clone());
    !one.client_id.is_empty() && name(one) == name(other)
}

fn mqtt_sink(server: &MqttServer, targets: Targets) -> Result<MqttSink, String> {
    let version = match server.version.as_str() {
        "MQTT_3_1" => MqttVersion::V3_1,
        "MQTT_3_1_1" => MqttVersion::V3_1_1,
        "MQTT_5" => MqttVersion::V5,
        other => return Err(format!("protocolVersion {other:?} is not supported")),
    };
    let host = match server.host.parse::<Ipv6Addr>() {
        Ok(address) => format!("[{address}]"),
        Err(_) => server.host.clone(),
    };
    let client_id = match server.client_id.as_str() {
        "" => format!("tw-{}", any_name().map_err(|error| error.to_string())?),
        given => given.to_owned(),
    };
    let config = MqttConnectorConfig {
        server: format!("{host}:{}", server.port),
        version,
        client_id,
        user: server.user.clone(),
        password: server.password.clone().map(Secret::new),
        clean_start: server.is_clean,
        session_expiry_s: 0,
        keep_alive_s: 60,
        in_flight_max: 1000,
        receive_max: 100,
        packet_bytes_max: 1 << 20,
        loop_protection: false,
        connect_timeout_ms: server.connect_timeout_ms,
        answer_timeout_ms: RECORD_MS,
        reconnect: RetryConfig::default(),
        tls: server.is_tls.then(TlsConfig::default),
    };
    let action = MqttActionConfig {
        topic: "${topic}".to_owned(),
        payload: "${payload}".to_owned(),
        qos: "1".to_owned(),
        retain: "${retain}".to_owned(),
        user_properties: PublishUserProperties::All(String::new()),
        mqtt_properties: BTreeMap::new(),
    };
    let connector = MqttConnector::with_targets(&config, Some(targets)).map_err(|problems| problems.join("; "))?;
    MqttSink::new(Arc::new(connector), &action).map_err(|problems| problems.join("; "))
}

/// 16 letters: a client id of MQTT 3.1 has 23 at most.
fn any_name() -> io::Result<String> {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).map_err(io::Error::other)?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

fn kafka_producer(server: &KafkaServer, targets: Targets) -> Result<KafkaProducer, String> {
    let property = |name: &str| {
        let found = server.properties.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.as_str())
    };
    let protocol = property("security.protocol")
        .unwrap_or("PLAINTEXT")
        .to_ascii_uppercase();
    let (is_sasl, is_tls) = match protocol.as_str() {
        "PLAINTEXT" => (false, false),
        "SSL" => (false, true),
        "SASL_PLAINTEXT" => (true, false),
        "SASL_SSL" => (true, true),
        other => return Err(format!("security.protocol {other:?} is not supported")),
    };
    let authentication = match is_sasl {
        false => Authentication::None,
        true => {
            let login = property("sasl.jaas.config").unwrap_or_default();
            let member = |name| jaas(login, name).ok_or_else(|| format!("sasl.jaas.config: found no {name}=\"…\""));
            let (username, password) = (member("username")?, Secret::new(member("password")?));
            match property("sasl.mechanism").unwrap_or("PLAIN") {
                "PLAIN" => Authentication::Plain { username, password },
                "SCRAM-SHA-256" => Authentication::ScramSha256 { username, password },
                "SCRAM-SHA-512" => Authentication::ScramSha512 { username, password },
                other => return Err(format!("sasl.mechanism {other:?} is not supported")),
            }
        }
    };
    let config = KafkaConnectorConfig {
        bootstrap_hosts: server.bootstrap_servers.clone(),
        authentication,
        tls: is_tls.then(KafkaTls::default),
        connect_timeout_ms: CONNECT_TIMEOUT_MS,
        request_timeout_ms: RECORD_MS,
        client_id: "tidewire".to_owned(),
    };
    let problems = config.problems();
    if !problems.is_empty() {
        return Err(problems.join("; "));
    }
    let mut options = vec![
        ("acks", server.acks.clone()),
        ("linger.ms", server.linger_ms.to_string()),
        ("message.timeout.ms", RECORD_MS.to_string()),
    ];
    let named = [
        ("compression.type", "compression.type"),
        ("enable.idempotence", "enable.idempotence"),
        ("max.request.size", "message.max.bytes"),
        ("request.timeout.ms", "request.timeout.ms"),
    ];
    for (theirs, ours) in named {
        options.extend(property(theirs).map(|value| (ours, value.to_owned())));
    }
    if let Some(text) = property("delivery.timeout.ms") {
        let limit: u64 = text
            .parse()
            .map_err(|_| format!("delivery.timeout.ms: {text:?} is not a number of milliseconds"))?;
        options.push(("message.timeout.ms", limit.min(RECORD_MS).to_string()));
    }
    KafkaProducer::new(&config, &options, targets)
}

/// `… username="u" password="p";`
fn jaas(text: &str, name: &str) -> Option<String> {
    let (_, rest) = text.split_once(&format!("{name}=\""))?;
    rest.split_once('"').map(|(value, _)| value.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logins_of_kafka_are_read_as_java_writes_them() {
        let text = r#"org.apache.kafka.common.security.plain.PlainLoginModule required username="u s" password="p;";"#;
        assert_eq!(jaas(text, "username").as_deref(), Some("u s"));
        assert_eq!(jaas(text, "password").as_deref(), Some("p;"));
        assert_eq!(jaas("", "password"), None);
    }

    #[test]
    fn a_changed_node_is_the_same_client_if_it_has_a_name() {
        let server = |client_id: &str, password: &str| MqttServer {
            host: "h".to_owned(),
            port: 1883,
            is_tls: false,
            client_id: client_id.to_owned(),
            user: None,
            password: Some(password.to_owned()),
            version: String::new(),
            is_clean: true,
            connect_timeout_ms: 1,
        };
        assert!(is_same_client(&server("c", "old"), &server("c", "new")));
        assert!(!is_same_client(&server("c", "p"), &server("d", "p")));
        assert!(!is_same_client(&server("", "p"), &server("", "q")));
    }

    /// Says on which thread it ends.
    struct Slow(std::sync::mpsc::Sender<std::thread::ThreadId>);

    impl Drop for Slow {
        fn drop(&mut self) {
            let _ = self.0.send(std::thread::current().id());
        }
    }

    #[test]
    fn what_makes_room_ends_on_another_thread() {
        let outward = ExternalClients::start(TargetPolicy::new("", |_| false)).expect("a runtime");
        let runtime = outward.runtime().expect("it runs");
        let (ended, endings) = std::sync::mpsc::channel();
        let mut known: ClientCache<usize, Arc<BackgroundDrop<Slow>>> = ClientCache::default();
        for key in 0..=SERVERS_MAX {
            let make = || Ok(Arc::new(BackgroundDrop::new(Slow(ended.clone()), runtime)));
            assert!(known.get(key, make).is_ok());
        }
        let on = endings.recv_timeout(Duration::from_secs(10)).expect("one made room");
        assert_ne!(on, std::thread::current().id());
        // A task may hold the last reference.
        let held = known.get(1, || Err("made again".to_owned())).expect("it is there");
        drop(known);
        let task = runtime.block_on(runtime.spawn(async move {
            drop(held);
            std::thread::current().id()
        }));
        let (task, all) = (task.expect("it ends"), endings.iter().take(SERVERS_MAX));
        assert!(all.into_iter().all(|on| on != task));
    }

    #[test]
    fn what_was_needed_longest_ago_makes_room() {
        let mut known: ClientCache<usize, usize> = ClientCache::default();
        for key in 0..SERVERS_MAX {
            assert_eq!(known.get(key, || Ok(key)), Ok(key));
        }
        assert_eq!(known.get(0, || Err("made again".to_owned())), Ok(0));
        assert_eq!(known.get(SERVERS_MAX, || Ok(7)), Ok(7));
        assert_eq!(known.get(0, || Err("made again".to_owned())), Ok(0));
        assert_eq!(
            known.get(1, || Err("made again".to_owned())),
            Err("made again".to_owned())
        );
    }
}
