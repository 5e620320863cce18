//! One connection: reads commands, sends answers and updates.

use std::collections::{HashMap, HashSet};
use std::io;
use std::time::Duration;

use axum::http::HeaderMap;
use devices::{Update, Updates};
use platform::ids::{DeviceId, EntityType, Uuid};
use platform::model::{Alarm, Authority};
use tokio::io::ReadHalf;
use tokio::time::{Instant, MissedTickBehavior, interval, sleep_until};
use web::problem::HttpProblem;

use super::super::admission::Admission;
use super::super::call::{ApiCall, CallServices};
use super::super::failure::ThingsboardError;
use super::super::principal::Principal;
use super::commands::{CommandsMessage, EntityDataCommand, SocketCommand};
use super::connection_limits::ConnectionPermit;
use super::frames::{FrameReader, FrameWriter, SocketMessage, SocketStream};
use super::subscription::{
    EntityPageSubscription, SocketSubscription, SocketUpdate, failure, history_frame, no_notifications,
};

/// Limit per connection.
pub(super) const SUBSCRIPTIONS_MAX: usize = 1000;
/// Limit of entities that one connection watches.
const WATCHED_MAX: usize = 10_000;
/// Limit of updates that are queued for one connection.
const QUEUE: usize = 4096;
/// Time limit for authentication.
const LOGIN_WITHIN: Duration = Duration::from_secs(10);
/// Interval of pings and checks of the token. A client that does not answer two pings is disconnected.
const CHECK_EVERY: Duration = Duration::from_secs(20);
/// Counts are updated every this many checks.
const CHECKS_PER_COUNT: u32 = 3;

/// Interval of alarm updates. Alarms that change in between are processed together.
const ALARMS_EVERY: Duration = Duration::from_secs(1);
/// Limit of changed alarms that wait for an update. Above it, all subscriptions are sent again.
const ALARMS_MAX: usize = 1000;

const POLICY_VIOLATION: u16 = 1008;
const TRY_AGAIN_LATER: u16 = 1013;

pub struct SocketSession {
    services: CallServices,
    admission: Admission,
    login: Option<(Principal, String)>,
    permit: ConnectionPermit,
    updates: Updates,
    subscriptions: HashMap<i64, SocketSubscription>,
    watched: HashSet<Uuid>,
    /// Current state of the changed alarms. They are not processed before `check_at`.
    changed_alarms: Vec<Alarm>,
    check_at: Instant,
}

/// `None`: the connection continues. Otherwise the status code for closing it.
type CloseStatus = Option<u16>;

impl SocketSession {
    pub fn new(
        services: CallServices,
        admission: Admission,
        login: Option<(Principal, String)>,
        seat: ConnectionPermit,
    ) -> SocketSession {
        let updates = services.platform_access.devices().subscribe(QUEUE);
        SocketSession {
            services,
            admission,
            login,
            permit: seat,
            updates,
            subscriptions: HashMap::new(),
            watched: HashSet::new(),
            changed_alarms: Vec::new(),
            check_at: Instant::now(),
        }
    }

    pub async fn run(mut self, mut reader: FrameReader<ReadHalf<SocketStream>>, mut writer: FrameWriter) {
        let mut check = interval(CHECK_EVERY);
        check.set_missed_tick_behavior(MissedTickBehavior::Delay);
        check.reset();
        let login_by = Instant::now() + LOGIN_WITHIN;
        let (mut silent_checks, mut checks) = (0, 0_u32);
        let code = loop {
            let step = tokio::select! {
                heard = reader.next() => {
                    silent_checks = 0;
                    match heard {
                        Ok(heard) => self.on_incoming(heard, &mut writer).await,
                        Err(_) => break 1000,
                    }
                }
                Some(update) = self.updates.next() => self.show(&update, &mut writer).await,
                _ = check.tick() => {
                    silent_checks += 1;
                    checks = checks.wrapping_add(1);
                    if silent_checks > 2 {
                        break POLICY_VIOLATION;
                    }
                    self.check(checks.is_multiple_of(CHECKS_PER_COUNT), &mut writer).await
                }
                () = sleep_until(self.check_at), if !self.changed_alarms.is_empty() => self.send_alarm_updates(&mut writer).await,
                () = sleep_until(login_by), if self.login.is_none() => break POLICY_VIOLATION,
                () = self.permit.evicted(), if self.login.is_none() => break TRY_AGAIN_LATER,
            };
            match step {
                Ok(None) => {}
                Ok(Some(code)) => break code,
                // The messages do not fit into the memory for answers.
                Err(error) if error.kind() == io::ErrorKind::QuotaExceeded => break TRY_AGAIN_LATER,
                Err(_) => return,
            }
        };
        // If the client does not accept it, it has disconnected.
        let _ = tokio::time::timeout(Duration::from_secs(1), writer.close(code)).await;
    }

    async fn on_incoming(&mut self, heard: SocketMessage, writer: &mut FrameWriter) -> io::Result<CloseStatus> {
        match heard {
            SocketMessage::Ping(payload) => writer.pong(&payload).await?,
            SocketMessage::Pong => {}
            SocketMessage::Closed(code) => return Ok(Some(code)),
            SocketMessage::Text(text) => return self.on_message(&text, writer).await,
        }
        Ok(None)
    }

    fn authenticate(&mut self, principal: &Principal) -> bool {
        let sockets = self.services.platform_access.sockets_of(principal);
        self.permit.log_in(principal, sockets)
    }

    async fn on_message(&mut self, text: &str, writer: &mut FrameWriter) -> io::Result<CloseStatus> {
        let Ok(mut message) = CommandsMessage::read(text) else {
            let frame = failure(0, false, &ThingsboardError::bad_request("Failed to parse the message"));
            writer.messages([frame]).await?;
            return Ok(None);
        };
        if let Some(auth) = message.auth_cmd.take() {
            match self.admission.principal_of(auth.token.clone(), false).await {
                Ok(principal) if !self.authenticate(&principal) => return Ok(Some(TRY_AGAIN_LATER)),
                Ok(principal) => {
                    // Subscriptions of another user are not visible to this one.
                    if self.login.as_ref().is_some_and(|(before, _)| before.id != principal.id) {
                        self.subscriptions.clear();
                        self.watch();
                    }
                    self.login = Some((principal, auth.token));
                }
                Err(_) => return Ok(Some(POLICY_VIOLATION)),
            }
        }
        if self.login.is_none() {
            return Ok(Some(POLICY_VIOLATION));
        }
        for command in message.commands() {
            let frame = match command {
                Ok(command) => self.execute(command).await,
                Err((id, problem)) => Some(failure(id, false, &ThingsboardError::bad_request(problem))),
            };
            if let Some(frame) = frame {
                writer.messages([frame]).await?;
            }
        }
        Ok(None)
    }

    async fn execute(&mut self, command: SocketCommand) -> Option<SocketUpdate> {
        let (id, is_old) = match &command {
            SocketCommand::Telemetry(old) | SocketCommand::Attributes(old) | SocketCommand::History(old) => {
                (old.cmd_id, true)
            }
            SocketCommand::Entities(entities) => (entities.cmd_id, false),
            SocketCommand::EntityCount { id, .. }
            | SocketCommand::Alarms { id, .. }
            | SocketCommand::AlarmCount { id, .. } => (*id, false),
            SocketCommand::AlarmStatus(status) => (status.cmd_id, false),
            SocketCommand::Unsubscribe(id) | SocketCommand::Notifications { id, .. } => (*id, false),
            SocketCommand::Nothing => return None,
        };
        let is_end = match &command {
            SocketCommand::Telemetry(old) | SocketCommand::Attributes(old) => old.unsubscribe,
            SocketCommand::Unsubscribe(_) => true,
            _ => false,
        };
        if is_end {
            self.subscriptions.remove(&id);
            self.watch();
            return None;
        }
        if let SocketCommand::Notifications { is_count, .. } = command {
            return Some(no_notifications(id, is_count));
        }
        let is_of_screen = self
            .login
            .as_ref()
            .is_some_and(|(principal, _)| principal.screen.is_some());
        let frame = match command {
            SocketCommand::Telemetry(_) | SocketCommand::Attributes(_) => self.subscribe(id, command).await,
            _ if is_of_screen => Err(ThingsboardError::permission()),
            _ => self.subscribe(id, command).await,
        };
        self.watch();
        Some(frame.unwrap_or_else(|problem| failure(id, is_old, &problem)))
    }

    /// Starts watching before reading, so that changes in between arrive as updates.
    async fn subscribe(&mut self, id: i64, command: SocketCommand) -> Result<SocketUpdate, ThingsboardError> {
        if self.subscriptions.len() >= SUBSCRIPTIONS_MAX && !self.subscriptions.contains_key(&id) {
            return Err(ThingsboardError::bad_request(format!(
                "More than {SUBSCRIPTIONS_MAX} subscriptions"
            )));
        }
        let old = self.subscriptions.remove(&id);
        if let SocketCommand::Entities(command) = command {
            return self.subscribe_entities(id, *command, old).await;
        }
        self.watch_before_query(&command)?;
        let call = self.call()?;
        let (subscription, frame) =
            on_tenant_thread(call, move |call| create_subscription(call, id, command)).await??;
        if let Some(subscription) = subscription {
            self.subscriptions.insert(id, subscription);
        }
        Ok(frame)
    }

    async fn subscribe_entities(
        &mut self,
        id: i64,
        command: EntityDataCommand,
        old: Option<SocketSubscription>,
    ) -> Result<SocketUpdate, ThingsboardError> {
        let mut entities = match (old, &command.query) {
            (Some(SocketSubscription::Entities(known)), _) => known,
            (_, Some(query)) => Box::new(EntityPageSubscription::new(query.clone())),
            (_, None) => return Err(ThingsboardError::bad_request("The command has no query")),
        };
        let once = entities.change(command);
        let call = self.call()?;
        let found = on_tenant_thread(call, move |call| entities.find(call).map(|()| entities));
        let mut entities = found.await??;
        for entity in entities.watched() {
            self.watch_one(entity)?;
        }
        let call = self.call()?;
        let read = on_tenant_thread(call, move |call| {
            call.platform().wait_for_stores();
            let frame = entities.frame(call, id, &once)?;
            Ok::<_, ThingsboardError>((entities, frame))
        });
        let (entities, frame) = read.await??;
        self.subscriptions.insert(id, SocketSubscription::Entities(entities));
        Ok(frame)
    }

    fn watch_before_query(&mut self, command: &SocketCommand) -> Result<(), ThingsboardError> {
        let tenant = self.login.as_ref().map(|(principal, _)| principal.tenant.0);
        let entity = match command {
            SocketCommand::Telemetry(old) | SocketCommand::Attributes(old) => old.entity().map(|entity| entity.id),
            SocketCommand::Alarms { .. } | SocketCommand::AlarmCount { .. } => tenant,
            SocketCommand::AlarmStatus(status) => Some(status.originator_id.id),
            _ => None,
        };
        entity.map_or(Ok(()), |entity| self.watch_one(entity))
    }

    fn watch_one(&mut self, entity: Uuid) -> Result<(), ThingsboardError> {
        if self.watched.contains(&entity) {
            return Ok(());
        }
        if self.watched.len() >= WATCHED_MAX {
            return Err(ThingsboardError::bad_request(format!(
                "More than {WATCHED_MAX} entities are watched"
            )));
        }
        self.watched.insert(entity);
        self.updates.watch(entity);
        Ok(())
    }

    /// Watches exactly the entities of the subscriptions.
    fn watch(&mut self) {
        let wanted: HashSet<Uuid> = self
            .subscriptions
            .values()
            .flat_map(SocketSubscription::watched)
            .collect();
        for gone in self.watched.difference(&wanted) {
            self.updates.unwatch(*gone);
        }
        for new in wanted.difference(&self.watched) {
            self.updates.watch(*new);
        }
        self.watched = wanted;
    }

    fn call(&self) -> Result<ApiCall, ThingsboardError> {
        let (principal, _) = self.login.as_ref().ok_or_else(ThingsboardError::unauthorized)?;
        Ok(self.services.call(principal.clone(), &HeaderMap::new()))
    }

    async fn show(&mut self, update: &Update, writer: &mut FrameWriter) -> io::Result<CloseStatus> {
        if self.updates.take_missed() > 0 {
            return self.send_current_state(writer).await;
        }
        if self.is_of_another_customer(update) {
            self.drop_inaccessible_subscriptions(writer).await?;
            return Ok(None);
        }
        let shown = self.subscriptions.iter_mut();
        let frames: Vec<SocketUpdate> = shown
            .filter_map(|(id, subscription)| subscription.frame_of_update(*id, update))
            .collect();
        writer.messages(frames).await?;
        if let Update::Alarm { alarm, .. } = update {
            let changed = &mut self.changed_alarms;
            if changed.len() <= ALARMS_MAX {
                changed.retain(|known| known.id != alarm.id);
                changed.push(alarm.as_ref().clone());
            }
        }
        Ok(None)
    }

    async fn send_alarm_updates(&mut self, writer: &mut FrameWriter) -> io::Result<CloseStatus> {
        self.check_at = Instant::now() + ALARMS_EVERY;
        let changed = std::mem::take(&mut self.changed_alarms);
        if changed.len() > ALARMS_MAX {
            return self.send_current_state(writer).await;
        }
        self.send_alarm_changes(changed, writer).await?;
        Ok(None)
    }

    /// Sends changed alarms and counts.
    async fn send_alarm_changes(&mut self, alarms: Vec<Alarm>, writer: &mut FrameWriter) -> io::Result<()> {
        let Ok(call) = self.call() else { return Ok(()) };
        let mut subscriptions = std::mem::take(&mut self.subscriptions);
        let looked = on_tenant_thread(call, move |call| {
            call.platform().wait_for_stores();
            let mut frames = Vec::new();
            for (id, subscription) in &mut subscriptions {
                let frame = subscription.query_updates(call, *id, &alarms);
                frames.extend(frame.unwrap_or_else(|problem| Some(failure(*id, false, &problem))));
            }
            (subscriptions, frames)
        });
        let Ok((subscriptions, frames)) = looked.await else {
            return Err(io::ErrorKind::Other.into());
        };
        self.subscriptions = subscriptions;
        writer.messages(frames).await?;
        Ok(())
    }

    /// Sends the current state of all subscriptions, after updates were dropped.
    async fn send_current_state(&mut self, writer: &mut FrameWriter) -> io::Result<CloseStatus> {
        while self.updates.try_next().is_some() {}
        let Ok(call) = self.call() else { return Ok(None) };
        let mut subscriptions = std::mem::take(&mut self.subscriptions);
        let read = on_tenant_thread(call, move |call| {
            call.platform().wait_for_stores();
            let frames: Vec<SocketUpdate> = subscriptions
                .iter_mut()
                .filter_map(|(id, subscription)| subscription.current_state(call, *id).transpose())
                .filter_map(Result::ok)
                .collect();
            (subscriptions, frames)
        });
        let Ok((subscriptions, frames)) = read.await else {
            return Err(io::ErrorKind::Other.into());
        };
        self.subscriptions = subscriptions;
        writer.messages(frames).await?;
        Ok(None)
    }

    /// Checks that the token has not expired and its user still exists.
    async fn check(&mut self, is_counting: bool, writer: &mut FrameWriter) -> io::Result<CloseStatus> {
        if let Some((_, token)) = &self.login
            && self.admission.principal_of(token.clone(), false).await.is_err()
        {
            return Ok(Some(POLICY_VIOLATION));
        }
        writer.ping().await?;
        self.drop_inaccessible_subscriptions(writer).await?;
        if is_counting {
            self.send_alarm_changes(Vec::new(), writer).await?;
        }
        Ok(None)
    }
}

impl SocketSession {
    /// Whether the device no longer belongs to the customer of the subscription.
    fn is_of_another_customer(&self, update: &Update) -> bool {
        let (Some((principal, _)), Some(entity)) = (&self.login, update.entity()) else {
            return false;
        };
        if principal.authority != Authority::CustomerUser
            || principal.screen.is_some()
            || entity.kind != EntityType::Device
        {
            return false;
        }
        let directory = self.services.platform_access.platform().entities().directory();
        directory
            .device(DeviceId(entity.id))
            .is_none_or(|device| device.customer != principal.customer)
    }

    /// Drops subscriptions of entities that are no longer assigned to the customer. The rights of tenant administrators
    /// do not change.
    async fn drop_inaccessible_subscriptions(&mut self, writer: &mut FrameWriter) -> io::Result<()> {
        let Some((principal, _)) = &self.login else {
            return Ok(());
        };
        let is_screen = principal.screen.is_some();
        let is_admin = principal.authority != Authority::CustomerUser && !is_screen;
        if self.subscriptions.is_empty() || is_admin {
            return Ok(());
        }
        let Ok(call) = self.call() else { return Ok(()) };
        let mut subscriptions = std::mem::take(&mut self.subscriptions);
        let looked = on_tenant_thread(call, move |call| {
            let mut frames = Vec::new();
            let forget = match is_screen {
                true => SocketSubscription::drop_hidden_attributes,
                false => SocketSubscription::drop_inaccessible,
            };
            subscriptions.retain(|id, subscription| match forget(subscription, call) {
                Ok(()) => true,
                Err(problem) => {
                    frames.push(failure(*id, subscription.is_old(), &problem));
                    false
                }
            });
            (subscriptions, frames)
        });
        let Ok((subscriptions, frames)) = looked.await else {
            return Err(io::ErrorKind::Other.into());
        };
        self.subscriptions = subscriptions;
        self.watch();
        writer.messages(frames).await?;
        Ok(())
    }
}

fn create_subscription(
    call: &ApiCall,
    id: i64,
    command: SocketCommand,
) -> Result<(Option<SocketSubscription>, SocketUpdate), ThingsboardError> {
    call.platform().wait_for_stores();
    let some = |(subscription, frame)| (Some(subscription), frame);
    Ok(match command {
        SocketCommand::Telemetry(command) => some(SocketSubscription::telemetry(call, &command)?),
        SocketCommand::Attributes(command) => some(SocketSubscription::attributes(call, &command)?),
        SocketCommand::History(command) => (None, history_frame(call, &command)?),
        SocketCommand::EntityCount { query, .. } => some(SocketSubscription::entity_count(call, id, &query)?),
        SocketCommand::Alarms { query, .. } => some(SocketSubscription::alarms(call, id, &query)?),
        SocketCommand::AlarmCount { query, .. } => some(SocketSubscription::alarm_count(call, id, &query)?),
        SocketCommand::AlarmStatus(status) => some(SocketSubscription::alarm_status(call, id, &status)?),
        SocketCommand::Entities(_)
        | SocketCommand::Unsubscribe(_)
        | SocketCommand::Notifications { .. }
        | SocketCommand::Nothing => {
            return Err(ThingsboardError::bad_request("The command makes no such subscription"));
        }
    })
}

async fn on_tenant_thread<R: Send + 'static>(
    call: ApiCall,
    work: impl FnOnce(&ApiCall) -> R + Send + 'static,
) -> Result<R, HttpProblem> {
    let turn = call.wait_for_thread().await;
    let work = move || {
        let _turn = turn;
        work(&call)
    };
    web::block(work).await
}
