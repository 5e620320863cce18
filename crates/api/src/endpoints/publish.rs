//! Publishing over HTTP: one message or many. All messages of a request are checked before the first is published. At
//! QoS 1 and 2 the answer, like PUBACK, waits until the journal and the buffers of actions have stored the messages.

use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use axum::{Extension, Json};
use broker::{MessageLimit, MessageLimits, Now, ServerMessage, Shard, ShardId};
use mqtt::QoS;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};
use web::body;
use web::guard::{AuthenticatedUser, RequiredAccess};
use web::problem::{FieldError, HttpProblem};

use crate::app::Endpoint;
use crate::message_body::{MessageProperties, PayloadEncoding};
use crate::shards::Shards;

const BODY_MAX: usize = 2 * 1024 * 1024;
const BULK_BODY_MAX: usize = 8 * 1024 * 1024;
pub(crate) const BULK_MESSAGES_MAX: usize = 1000;
/// Messages that a shard publishes in one visit. The limit keeps the delay of its connections short.
const MESSAGES_PER_VISIT: usize = 50;
/// How long a request waits until its messages are committed.
const COMMIT_TIMEOUT: Duration = Duration::from_secs(10);

/// A message to publish.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewMessage {
    /// Topic name. `$SYS/` and `$share/` are not allowed.
    #[schemars(length(min = 1, max = 65535))]
    topic: String,
    #[serde(default)]
    payload: String,
    #[serde(default)]
    payload_encoding: PayloadEncoding,
    #[serde(default)]
    #[schemars(range(max = 2))]
    qos: u8,
    /// With RETAIN, an empty payload deletes the retained message.
    #[serde(default)]
    retain: bool,
    #[serde(default)]
    properties: MessageProperties,
}

#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct NewMessages {
    /// Messages with the same topic are published in this order.
    #[schemars(length(min = 1, max = 1000))]
    messages: Vec<NewMessage>,
}

/// Result of publishing a message.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[schemars(rename = "PublishResult")]
pub struct PublishResult {
    /// Whether the topic has a subscriber, as far as this node knows.
    pub matched: bool,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct PublishResults {
    /// In the order of the request.
    pub results: Vec<PublishResult>,
}

pub fn endpoints() -> Vec<Endpoint> {
    vec![
        Endpoint::post("/api/v1/publish", "publish", RequiredAccess::Operator, publish)
            .tag("Publish")
            .in_namespace()
            .describe(
                "Publish a message",
                "The login authorizes the request; access rules of MQTT clients do not apply. At QoS 1 and 2 the answer is sent after the message is \
                 committed. 503: the message cannot be stored now and was not published, or it was published and not committed in time.",
            )
            .takes::<NewMessage>(BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .fails(StatusCode::SERVICE_UNAVAILABLE)
            .returns::<PublishResult>("Published and committed."),
        Endpoint::post("/api/v1/publish/bulk", "publish_bulk", RequiredAccess::Operator, bulk)
            .tag("Publish")
            .in_namespace()
            .describe(
                "Publish up to 1000 messages",
                "All messages are checked before the first is published; all errors are reported. At QoS 1 and 2 the answer is sent after the \
                 messages are committed. With 503 some messages may have been published; the detail says how many.",
            )
            .takes::<NewMessages>(BULK_BODY_MAX)
            .fails(StatusCode::UNPROCESSABLE_ENTITY)
            .fails(StatusCode::SERVICE_UNAVAILABLE)
            .returns::<PublishResults>("Published and committed."),
    ]
}

async fn publish(
    State(shards): State<Shards>,
    Extension(login): Extension<AuthenticatedUser>,
    body::Json(new): body::Json<NewMessage>,
) -> Result<Json<PublishResult>, HttpProblem> {
    login.check_topic(&new.topic)?;
    let message = check(new)?;
    let shard = message.shard(&shards);
    let visit = shards
        .on_shard(shard, move |shard, now| publish_all(shard, now, &[(0, message)]))
        .await?;
    let visit = visit?;
    wait_for_commits(visit.committed).await?;
    let matched = visit.matched.into_iter().any(|(_, matched)| matched);
    Ok(Json(PublishResult { matched }))
}

async fn bulk(
    State(shards): State<Shards>,
    Extension(login): Extension<AuthenticatedUser>,
    body::Json(new): body::Json<NewMessages>,
) -> Result<Json<PublishResults>, HttpProblem> {
    if new.messages.is_empty() || new.messages.len() > BULK_MESSAGES_MAX {
        return Err(
            HttpProblem::invalid("messages", "the number of messages is out of range").expected("1 to 1000 messages"),
        );
    }
    new.messages
        .iter()
        .try_for_each(|message| login.check_topic(&message.topic))?;
    let limits = shards
        .on_shard(ShardId(0), |shard, _| shard.inspect().taps().message_limits())
        .await?;
    let messages = check_all(new.messages, &limits)?;
    let mut results = vec![PublishResult { matched: false }; messages.len()];
    let mut by_shard: Vec<Vec<(usize, DecodedMessage)>> = (0..shards.count()).map(|_| Vec::new()).collect();
    for (index, message) in messages.into_iter().enumerate() {
        by_shard[usize::from(message.shard(&shards).0)].push((index, message));
    }
    let (mut published, mut commits) = (0, Vec::new());
    for (shard, mut messages) in by_shard.into_iter().enumerate() {
        while !messages.is_empty() {
            let rest = messages.split_off(messages.len().min(MESSAGES_PER_VISIT));
            let batch = std::mem::replace(&mut messages, rest);
            let visit = shards
                .on_shard(ShardId(shard as u16), move |shard, now| publish_all(shard, now, &batch))
                .await?;
            let visit = visit.map_err(|mut problem| {
                problem.detail = format!(
                    "{}; {published} of {} messages were published",
                    problem.detail,
                    results.len()
                );
                problem
            })?;
            published += visit.matched.len();
            commits.extend(visit.committed);
            for (index, matched) in visit.matched {
                results[index].matched = matched;
            }
        }
    }
    wait_for_commits(commits).await?;
    Ok(Json(PublishResults { results }))
}

/// Messages that a shard published in one visit.
struct ShardBatch {
    /// Whether the topic matched a subscription, by index in the request.
    matched: Vec<(usize, bool)>,
    /// Resolves after all messages of the visit are committed. `None` if all have QoS 0.
    committed: Option<oneshot::Receiver<()>>,
}

/// Publishes all messages or none.
fn publish_all(shard: &mut Shard, now: Now, messages: &[(usize, DecodedMessage)]) -> Result<ShardBatch, HttpProblem> {
    let limits = shard.inspect().taps().message_limits();
    for (_, message) in messages {
        message.check_limits(&limits)?;
    }
    let mut server = shard.server_publisher(now);
    let waited_for = || messages.iter().filter(|(_, message)| message.qos != QoS::AtMostOnce);
    let must_be_stored = |message: &DecodedMessage| message.retain || message.qos != QoS::AtMostOnce;
    let is_rejected =
        |(_, message): &&(usize, DecodedMessage)| must_be_stored(message) && !server.can_store(&message.of_server());
    if let Some((_, message)) = messages.iter().find(is_rejected) {
        let topic = &message.topic;
        return Err(HttpProblem::unavailable(format!(
            "cannot store a message for topic {topic}: the disk or the buffer of an action is full"
        )));
    }
    let publish = |(index, message): &(usize, DecodedMessage)| (*index, server.publish(message.of_server()));
    let matched = messages.iter().map(publish).collect();
    let committed = waited_for().next().map(|_| {
        let (sender, committed) = oneshot::channel();
        // Sending fails if the request has ended.
        server.call_when_stored(Box::new(move || _ = sender.send(())));
        committed
    });
    Ok(ShardBatch { matched, committed })
}

async fn wait_for_commits(commits: impl IntoIterator<Item = oneshot::Receiver<()>>) -> Result<(), HttpProblem> {
    let deadline = Instant::now() + COMMIT_TIMEOUT;
    for committed in commits {
        match timeout_at(deadline, committed).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => {
                return Err(HttpProblem::unavailable(
                    "published, but the journal has failed or the server is stopping: the message may not be stored",
                ));
            }
            Err(_) => {
                let seconds = COMMIT_TIMEOUT.as_secs();
                let detail = format!(
                    "published, but not committed within {seconds} s: the disk or the target of an action is slow"
                );
                return Err(HttpProblem::unavailable(detail));
            }
        }
    }
    Ok(())
}

/// A checked and decoded message.
struct DecodedMessage {
    topic: String,
    payload: Vec<u8>,
    properties: Vec<u8>,
    qos: QoS,
    retain: bool,
    message_expiry_s: Option<u32>,
}

impl DecodedMessage {
    /// Checks the message against the limits of clients.
    fn check_limits(&self, limits: &MessageLimits) -> Result<(), HttpProblem> {
        limits.check(&self.of_server().limited()).map_err(|limit| {
            let field = match limit {
                MessageLimit::TopicLevels { .. } | MessageLimit::ControlCharacters => "topic",
                MessageLimit::PacketBytes { .. } => "payload",
                MessageLimit::Qos { .. } => "qos",
                MessageLimit::Retain => "retain",
            };
            HttpProblem::invalid(field, limit.to_string())
        })
    }

    /// Always the same shard for a topic, so that the topic's messages stay in order.
    fn shard(&self, shards: &Shards) -> ShardId {
        broker::home_shard(&self.topic, shards.count()).unwrap_or(ShardId(0))
    }

    fn of_server(&self) -> ServerMessage<'_> {
        ServerMessage {
            topic: &self.topic,
            payload: &self.payload,
            properties: &self.properties,
            qos: self.qos,
            retain: self.retain,
            expiry_s: self.message_expiry_s,
            mark: 0,
        }
    }
}

fn check(new: NewMessage) -> Result<DecodedMessage, HttpProblem> {
    let refuse = |detail: String| HttpProblem::invalid("topic", detail).expected("a topic name");
    mqtt::validate_topic_name(&new.topic).map_err(|error| refuse(error.to_string()))?;
    if new.topic == "$SYS" || ["$SYS/", "$share/"].iter().any(|prefix| new.topic.starts_with(prefix)) {
        return Err(refuse("only the server may publish to this topic".into()));
    }
    Ok(DecodedMessage {
        payload: new.payload_encoding.decode(new.payload)?,
        properties: new.properties.to_wire()?,
        qos: QoS::from_bits(new.qos)
            .ok_or_else(|| HttpProblem::invalid("qos", "out of range").expected("0, 1 or 2"))?,
        retain: new.retain,
        message_expiry_s: new.properties.message_expiry_interval,
        topic: new.topic,
    })
}

fn check_all(new: Vec<NewMessage>, limits: &MessageLimits) -> Result<Vec<DecodedMessage>, HttpProblem> {
    let mut errors = Vec::new();
    let mut messages = Vec::with_capacity(new.len());
    for (index, new) in new.into_iter().enumerate() {
        let checked = check(new).and_then(|message| message.check_limits(limits).map(|()| message));
        match checked {
            Ok(message) => messages.push(message),
            Err(problem) => errors.push(FieldError {
                field: format!("messages[{index}].{}", problem.field.unwrap_or_default()),
                detail: problem.detail,
            }),
        }
    }
    if errors.is_empty() {
        return Ok(messages);
    }
    let detail = format!("{} messages have invalid values; nothing was published", errors.len());
    let mut problem = HttpProblem::invalid("messages", detail);
    problem.errors = errors;
    Err(problem)
}
