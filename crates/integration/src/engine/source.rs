//! Creates, runs, changes and deletes sources.
//!
//! A source of an MQTT connector receives messages as soon as it is created. Therefore it is created before anything
//! uses the connector. It starts to process messages when the server runs.

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

    /// Creates or changes a source.
    pub fn put_source(&self, mut definition: SourceDefinition) -> Result<SourceView, EngineError> {
        let mut store = self.changes();
        self.define_source(&mut store, &mut definition)?;
        self.source(&definition.id())
    }

    /// Enables or disables a source. A disabled source subscribes to nothing and fetches nothing.
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
            check_not_pinned("source", id, &state.origins.sources)?;
            if !state.stored.definitions.sources.contains_key(id) {
                return Err(not_found("source", id));
            }
        }
        self.store_change(&mut store, &DefinitionChange::Source(id.to_owned(), None))?;
        if let Some(handle) = self.stop_source(id) {
            let _runtime = self.inner.runtime_handle.enter();
            handle.end();
        }
        Ok(())
    }

    fn define_source(&self, store: &mut DefinitionStore, definition: &mut SourceDefinition) -> Result<(), EngineError> {
        let _runtime = self.inner.runtime_handle.enter();
        let id = definition.id();
        let mut problems: Problems = name_problem("name", &definition.name).into_iter().collect();
        if let Some(Err(problem)) = definition.publish.as_deref().map(published) {
            problems.push(format!("publish.{problem}"));
        }
        {
            let state = self.state();
            let stored = &state.stored.definitions.sources;
            check_not_pinned("source", &id, &state.origins.sources)?;
            // Secrets for one target are not sent to another.
            let old = stored.get(&id).filter(|old| old.connector == definition.connector);
            let old = old.map(|old| &old.parameters);
            problems.extend(restore_secrets("parameters", &mut definition.parameters, old));
            check_limit("sources", stored, &id, &mut problems);
            problems.extend(state.overlaps(definition));
        }
        let schema = kinds::source_schema(&definition.kind);
        let refused = self.secret_problems("parameters", &definition.parameters, schema);
        let created = match refused.is_empty() {
            true => self.create(definition),
            false => Err(refused),
        };
        let created = created.map_err(|invalid| problems.extend(invalid)).ok();
        let change = DefinitionChange::Source(id, Some(definition.clone()));
        let result = check_valid(problems).and_then(|()| self.store_change(store, &change));
        match (result, created) {
            (Ok(()), Some(created)) => self.replace_source(definition, created),
            (Ok(()), None) => {}
            (Err(error), created) => {
                created.into_iter().for_each(kinds::SourceHandle::end);
                return Err(error);
            }
        }
        Ok(())
    }

    /// Replaces a source. The new one exists before the old one ends, so that common subscriptions stay subscribed.
    fn replace_source(&self, definition: &SourceDefinition, created: kinds::SourceHandle) {
        let old = self.stop_source(&definition.id());
        if definition.enable {
            self.insert_source(definition, Ok(created));
            self.run_source(definition);
        } else {
            created.end();
        }
        if let Some(old) = old {
            old.end();
        }
    }

    /// Creates a source, if it is enabled. It receives messages, but does not process them yet.
    pub(super) fn create_source(&self, definition: &SourceDefinition) {
        if definition.enable {
            let created = self.create(definition);
            self.insert_source(definition, created);
            // Sources that were stored by earlier versions, or declared next to a stored one, may overlap.
            for problem in self.state().overlaps(definition) {
                tracing::warn!(source = %definition.id(), problem, "a source does not receive all messages of its subscriptions");
            }
        }
    }

    fn create(&self, definition: &SourceDefinition) -> Result<kinds::SourceHandle, Problems> {
        let _runtime = self.inner.runtime_handle.enter();
        self.state().source(definition)
    }

    fn insert_source(&self, definition: &SourceDefinition, created: Result<kinds::SourceHandle, Problems>) {
        if let Err(problems) = &created {
            tracing::error!(source = %definition.id(), problems = %problems.join("; "), "a source cannot start");
        }
        let entry = created.map(|handle| SourceEntry { handle, run: None });
        self.state().sources.insert(definition.id(), entry);
    }

    /// Starts processing the messages of a source, if the server runs.
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
        let Some(Ok(entry)) = state.sources.get_mut(&definition.id()) else {
            return;
        };
        match self.receiver(definition, net, metrics, server) {
            Ok(receiver) => {
                let source = entry.handle.source.clone();
                let (stopper, stop) = connectors::stop();
                let runtime = &self.inner.runtime_handle;
                let task = runtime.spawn(async move { source.run(&receiver, stop).await });
                entry.run = Some((stopper, task));
            }
            Err(problems) => {
                drop(state);
                self.insert_source(definition, Err(problems));
            }
        }
    }

    fn receiver(
        &self,
        definition: &SourceDefinition,
        net: &net::ServerHandle,
        metrics: Arc<SourceMetrics>,
        server: Option<Text>,
    ) -> Result<SourceReceiver, Problems> {
        let publish = definition.publish.as_deref().map(published).transpose();
        let seed = unix_ms() ^ u64::from(std::process::id());
        Ok(SourceReceiver {
            names: definition.from_names(),
            context: EventContext::new(&self.inner.node),
            server,
            ids: AtomicU64::new((seed ^ hash(definition.id().as_bytes())) << 32),
            publish: publish.map_err(|problem| vec![format!("publish.{problem}")])?,
            runner: Mutex::new(RuleRunner::new(
                self.inner.active_rules.clone(),
                LiveEnvironment::new(seed, self.inner.values.clone()),
            )),
            metrics,
            progress: self.inner.progress.clone(),
            net: net.clone(),
            refused: Mutex::default(),
        })
    }

    /// Stops a source. Messages that are not processed yet are not acknowledged.
    pub(super) fn stop_source(&self, id: &str) -> Option<kinds::SourceHandle> {
        let entry = self.state().sources.remove(id)?.ok()?;
        if let Some((stopper, task)) = entry.run {
            stopper.stop();
            self.inner.runtime_handle.block_on(async {
                if tokio::time::timeout(STOP_WITHIN, task).await.is_err() {
                    tracing::warn!(source = id, "a source did not stop in time; its task is abandoned");
                }
            });
        }
        Some(entry.handle)
    }
}
