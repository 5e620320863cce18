//! MQTT 5 properties as validated wire bytes.
//!
//! `Properties` borrows the bytes after the Property Length; they were checked against the packet they came in
//! (allowed identifiers, no forbidden duplicate, value ranges, UTF-8), so that iterating cannot fail.

/// One property, named as in MQTT 5 section 2.2.2.2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Property<'a> {
    PayloadFormatIndicator(u8),
    MessageExpiryInterval(u32),
    ContentType(&'a str),
    ResponseTopic(&'a str),
    CorrelationData(&'a [u8]),
    SubscriptionIdentifier(u32),
    SessionExpiryInterval(u32),
    AssignedClientIdentifier(&'a str),
    ServerKeepAlive(u16),
    AuthenticationMethod(&'a str),
    AuthenticationData(&'a [u8]),
    RequestProblemInformation(bool),
    WillDelayInterval(u32),
    RequestResponseInformation(bool),
    ResponseInformation(&'a str),
    ServerReference(&'a str),
    ReasonString(&'a str),
    ReceiveMaximum(u16),
    TopicAliasMaximum(u16),
    TopicAlias(u16),
    MaximumQoS(u8),
    RetainAvailable(bool),
    UserProperty(&'a str, &'a str),
    MaximumPacketSize(u32),
    WildcardSubscriptionAvailable(bool),
    SubscriptionIdentifierAvailable(bool),
    SharedSubscriptionAvailable(bool),
}

/// Where a property list stands; decides which identifiers it may hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PropertyContext {
    Connect,
    Will,
    ConnAck,
    Publish,
    /// PUBACK, PUBREC, PUBREL, PUBCOMP, SUBACK, UNSUBACK: reason string and user properties.
    Ack,
    Subscribe,
    Unsubscribe,
    Disconnect,
    Auth,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PropertiesError {
    Malformed,
    /// Unknown identifier, one that the packet may not carry, a duplicate, or a value out of range.
    Protocol,
}

/// Validated property bytes, without the length in front. Empty in 3.1 and 3.1.1.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Properties<'a>(&'a [u8]);

#[derive(Clone, Debug)]
pub struct UserProperties<'a>(&'a [u8]);

impl<'a> Properties<'a> {
    pub const EMPTY: Properties<'static> = Properties(&[]);

    /// Checks `bytes` against what `context` allows.
    pub fn parse(bytes: &'a [u8], context: PropertyContext) -> Result<Properties<'a>, PropertiesError> {
        let _ = context;
        unimplemented!("{}", bytes.len())
    }

    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(self) -> impl Iterator<Item = Property<'a>> {
        let _ = self;
        std::iter::empty()
    }

    // One getter per property that occurs at most once, each `Option<value>`, found by a scan:
    pub fn session_expiry_interval(self) -> Option<u32> { unimplemented!() }
    pub fn receive_maximum(self) -> Option<u16> { unimplemented!() }
    pub fn maximum_packet_size(self) -> Option<u32> { unimplemented!() }
    pub fn topic_alias_maximum(self) -> Option<u16> { unimplemented!() }
    pub fn topic_alias(self) -> Option<u16> { unimplemented!() }
    pub fn message_expiry_interval(self) -> Option<u32> { unimplemented!() }
    pub fn will_delay_interval(self) -> Option<u32> { unimplemented!() }
    pub fn request_problem_information(self) -> Option<bool> { unimplemented!() }
    pub fn request_response_information(self) -> Option<bool> { unimplemented!() }
    pub fn authentication_method(self) -> Option<&'a str> { unimplemented!() }
    pub fn authentication_data(self) -> Option<&'a [u8]> { unimplemented!() }
    pub fn response_topic(self) -> Option<&'a str> { unimplemented!() }
    pub fn content_type(self) -> Option<&'a str> { unimplemented!() }
    pub fn correlation_data(self) -> Option<&'a [u8]> { unimplemented!() }
    pub fn payload_format_indicator(self) -> Option<u8> { unimplemented!() }
    pub fn assigned_client_identifier(self) -> Option<&'a str> { unimplemented!() }
    pub fn server_keep_alive(self) -> Option<u16> { unimplemented!() }
    pub fn response_information(self) -> Option<&'a str> { unimplemented!() }
    pub fn server_reference(self) -> Option<&'a str> { unimplemented!() }
    pub fn reason_string(self) -> Option<&'a str> { unimplemented!() }
    /// First subscription identifier (SUBSCRIBE has at most one; PUBLISH may have several, see `iter`).
    pub fn subscription_identifier(self) -> Option<u32> { unimplemented!() }
    pub fn user_properties(self) -> UserProperties<'a> { unimplemented!() }

    /// Appends what a server forwards of a PUBLISH or will unaltered, in order [MQTT-3.3.2-17], [MQTT-3.3.2-18]: payload format,
    /// content type, response topic, correlation data, user properties; not topic alias, message expiry, will delay, subscription identifier.
    pub fn append_forwarded(self, out: &mut Vec<u8>) { let _ = out; unimplemented!() }

    /// True when `append_forwarded` would copy every byte, so that the slice itself can be used.
    pub fn is_forwarded_whole(self) -> bool { unimplemented!() }
}

impl<'a> Iterator for UserProperties<'a> {
    type Item = (&'a str, &'a str);

    fn next(&mut self) -> Option<Self::Item> {
        unimplemented!("{}", self.0.len())
    }
}

/// Appends properties to a buffer; the result is what `Properties` borrows.
pub struct PropertyWriter<'b> {
    pub out: &'b mut Vec<u8>,
}

impl<'b> PropertyWriter<'b> {
    pub fn new(out: &'b mut Vec<u8>) -> PropertyWriter<'b> {
        PropertyWriter { out }
    }

    pub fn put(&mut self, property: Property<'_>) -> &mut Self {
        let _ = property;
        unimplemented!()
    }

    /// What was written since `new`... the caller is the only one who can have put something wrong in.
    pub fn finish(self) -> Properties<'b> {
        Properties(self.out)
    }
}
