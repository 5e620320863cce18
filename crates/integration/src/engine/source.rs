//! Sources: made, run, changed, deleted.
//!
//! A source of an MQTT connector takes messages in from the moment it is made, so it is made before anything uses the connector, and
//! run when there is a server to publish to.

use super::*;

impl Engine {
    pub fn sources(&self) -> Vec<SourceView> {
        let _runtime = self.inner.runtime_handle.enter();
        let state = self.state();
        let sources = state.definitions.sources.values();
        sources.map(|definition| state.source_view(definition)).collect()
    }

    pub fn source(&self, id: &str) -> Result<SourceView, EngineError> {
        let _runtime = self.inner.runtime_handle.enter();
        let state = self.state();
        let definition = state
            .definitions
            .sources
            .get(id)
            .ok_or_else(|| not_found("source", id))?;
        Ok(state.source_view(definition))
    }

    /// Makes or changes one.
    pub fn put_source(&self, mut definition: SourceDefinition) -> Result<SourceView, EngineError> {
        let mut store = self.changes();
        self.define_source(&mut store, &mut definition)?;
        self.source(&definition.id())
    }

    /// A source that is not enabled subscribes to nothing and fetches nothing.
    pub fn enable_source(&self, id: &str, enable: bool) -> Result<SourceView, EngineError> {
        let mut store = self.changes();
        let definition = self.state().definitions.sources.get(id).cloned();
        let definition = definition.ok_or_else(|| not_found("source", id))?;
        self.define_source(&mut store, &mut SourceDefinition { enable, ..definition })?;
        self.source(id)
    }

    pub fn delete_source(&self, id: &str) -> Result<(), EngineError> {
        let mut store = self.changes();
        {
            let state = self.state();
            free("source", id, &state.origins.sources)?;
            if !state.kept.definitions.sources.contains_key(id) {
                return Err(not_found("source", id));
            }
        }
        self.keep(&mut store, &Change::Source(id.to_owned(), None))?;
        if let Some(origin) = self.stop_source(id) {
            let _runtime = self.inner.runtime_handle.enter();
            origin.end();
        }
        Ok(())
    }

    fn define_source(&self, store: &mut Store, definition: &mut SourceDefinition) -> Result<(), EngineError> {
        let _runtime = self.inner.runtime_handle.enter();
        let id = definition.id();
        let mut problems: Problems = name_problem("name", &definition.name).into_iter().collect();
        if let Some(Err(problem)) = definition.publish.as_deref().map(published) {
            problems.push(format!("publish.{problem}"));
        }
        {
            let state = self.state();
            let kept = &state.kept.definitions.sources;
            free("source", &id, &state.origins.sources)?;
            let old = kept.get(&id).map(|old| &old.parameters);
            problems.extend(restore_secrets("parameters", &mut definition.parameters, old));
            room("sources", kept, &id, &mut problems);
            problems.extend(state.taken(definition));
        }
        let made = self.make(definition);
        let made = made.map_err(|wrong| problems.extend(wrong)).ok();
        let change = Change::Source(id, Some(definition.clone()));
        let result = valid(problems).and_then(|()| self.keep(store, &change));
        match (result, made) {
            (Ok(()), Some(made)) => self.replace_source(definition, made),
            (Ok(()), None) => {}
            (Err(error), made) => {
                made.into_iter().for_each(kinds::Origin::end);
                return Err(error);
            }
        }
        Ok(())
    }

    /// The new one is there before the old one ends, so that what both subscribe to stays subscribed.
    fn replace_source(&self, definition: &SourceDefinition, made: kinds::Origin) {
        let old = self.stop_source(&definition.id());
        if definition.enable {
            self.hold_source(definition, Ok(made));
            self.run_source(definition);
        } else {
            made.end();
        }
        if let Some(old) = old {
            old.end();
        }
    }

    /// Takes messages in, if it is enabled, and does not hand them on yet.
    pub(super) fn make_source(&self, definition: &SourceDefinition) {
        if definition.enable {
            let made = self.make(definition);
            self.hold_source(definition, made);
            // Kept before there was an error for it, or declared beside one that is kept.
            for problem in self.state().taken(definition) {
                tracing::warn!(source = %definition.id(), problem, "a source does not get all that it subscribes to");
            }
        }
    }

    fn make(&self, definition: &SourceDefinition) -> Result<kinds::Origin, Problems> {
        let _runtime = self.inner.runtime_handle.enter();
        self.state().source(definition)
    }

    fn hold_source(&self, definition: &SourceDefinition, made: Result<kinds::Origin, Problems>) {
        if let Err(problems) = &made {
            tracing::error!(source = %definition.id(), problems = %problems.join("; "), "a source cannot run");
        }
        let held = made.map(|origin| HeldSource { origin, run: None });
        self.state().sources.insert(definition.id(), held);
    }

    /// Hands on what it takes in, if there is a server.
    pub(super) fn run_source(&self, definition: &SourceDefinition) {
        let Some(net) = self
            .inner
            .net
            .get()
            .filter(|_| self.inner.is_serving.load(Ordering::Acquire))
        else {
            return;
        };
        let mut state = self.state();
        let metrics = state.source_metrics.entry(definition.id()).or_default().clone();
        let connector = state.definitions.connectors.get(&definition.connector);
        let server = connector.and_then(|connector| connector.config.get("server")?.as_str());
        let server = server.map(Text::from);
        let Some(Ok(held)) = state.sources.get_mut(&definition.id()) else {
            return;
        };
        match self.receiver(definition, net, metrics, server) {
            Ok(receiver) => {
                let source = held.origin.source.clone();
                let (stopper, stop) = connectors::stop();
                let runtime = &self.inner.runtime_handle;
                let task = runtime.spawn(async move { source.run(&receiver, stop).await });
                held.run = Some((stopper, task));
            }
            Err(problems) => {
                drop(state);
                self.hold_source(definition, Err(problems));
            }
        }
    }

    fn receiver(
        &self,
        definition: &SourceDefinition,
        net: &net::Handle,
        metrics: Arc<SourceMetrics>,
        server: Option<Text>,
    ) -> Result<SourceReceiver, Problems> {
        let publish = definition.publish.as_deref().map(published).transpose();
        let seed = unix_ms() ^ u64::from(std::process::id());
        Ok(SourceReceiver {
            names: definition.from_names(),
            scene: Scene::new(&self.inner.node),
            server,
            ids: AtomicU64::new((seed ^ hash(definition.id().as_bytes())) << 32),
            publish: publish.map_err(|problem| vec![format!("publish.{problem}")])?,
            runner: Mutex::new(Runner::new(
                self.inner.in_force.clone(),
                Surroundings::new(seed, self.inner.values.clone()),
            )),
            metrics,
            progress: self.inner.progress.clone(),
            net: net.clone(),
            refused: Mutex::default(),
        })
    }

    /// What it has not handed over is told to nobody as taken.
    pub(super) fn stop_source(&self, id: &str) -> Option<kinds::Origin> {
        let held = self.state().sources.remove(id)?.ok()?;
        if let Some((stopper, task)) = held.run {
            stopper.stop();
            self.inner.runtime_handle.block_on(async {
                if tokio::time::timeout(STOP_WITHIN, task).await.is_err() {
                    tracing::warn!(source = id, "a source does not stop in time and is left to itself");
                }
            });
        }
        Some(held.origin)
    }
}
