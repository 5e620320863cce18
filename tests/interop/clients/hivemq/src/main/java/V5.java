// The client for MQTT 5.

import com.google.gson.JsonArray;
import com.google.gson.JsonElement;
import com.google.gson.JsonObject;
import com.hivemq.client.mqtt.MqttGlobalPublishFilter;
import com.hivemq.client.mqtt.datatypes.MqttQos;
import com.hivemq.client.mqtt.lifecycle.MqttDisconnectSource;
import com.hivemq.client.mqtt.mqtt5.Mqtt5AsyncClient;
import com.hivemq.client.mqtt.mqtt5.datatypes.Mqtt5UserProperties;
import com.hivemq.client.mqtt.mqtt5.datatypes.Mqtt5UserPropertiesBuilder;
import com.hivemq.client.mqtt.mqtt5.exceptions.Mqtt5ConnAckException;
import com.hivemq.client.mqtt.mqtt5.exceptions.Mqtt5DisconnectException;
import com.hivemq.client.mqtt.mqtt5.exceptions.Mqtt5PubAckException;
import com.hivemq.client.mqtt.mqtt5.exceptions.Mqtt5SubAckException;
import com.hivemq.client.mqtt.mqtt5.exceptions.Mqtt5UnsubAckException;
import com.hivemq.client.mqtt.mqtt5.message.connect.Mqtt5Connect;
import com.hivemq.client.mqtt.mqtt5.message.connect.Mqtt5ConnectBuilder;
import com.hivemq.client.mqtt.mqtt5.message.connect.Mqtt5ConnectRestrictions;
import com.hivemq.client.mqtt.mqtt5.message.connect.Mqtt5ConnectRestrictionsBuilder;
import com.hivemq.client.mqtt.mqtt5.message.disconnect.Mqtt5Disconnect;
import com.hivemq.client.mqtt.mqtt5.message.disconnect.Mqtt5DisconnectBuilder;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5PayloadFormatIndicator;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5Publish;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5PublishBuilder;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5PublishResult;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5WillPublish;
import com.hivemq.client.mqtt.mqtt5.message.publish.Mqtt5WillPublishBuilder;
import com.hivemq.client.mqtt.mqtt5.message.subscribe.Mqtt5RetainHandling;
import com.hivemq.client.mqtt.mqtt5.message.subscribe.Mqtt5Subscribe;
import com.hivemq.client.mqtt.mqtt5.message.subscribe.Mqtt5SubscribeBuilder;
import com.hivemq.client.mqtt.mqtt5.message.subscribe.Mqtt5Subscription;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;

final class V5 implements Driver.Connection {
    private final String name;
    private Mqtt5AsyncClient client;
    private volatile boolean isConnected;

    V5(String name) {
        this.name = name;
    }

    @Override
    public CompletableFuture<JsonObject> connect(JsonObject request) throws Exception {
        client = Driver.builder(request).useMqttVersion5().addDisconnectedListener(context -> {
            if (isConnected && context.getSource() != MqttDisconnectSource.USER) {
                Throwable cause = context.getCause();
                boolean isTold = cause instanceof Mqtt5DisconnectException && context.getSource() == MqttDisconnectSource.SERVER;
                Driver.sendClosed(name, isTold ? ((Mqtt5DisconnectException) cause).getMqttMessage().getReasonCode().getCode() : null);
            }
        }).buildAsync();
        client.publishes(MqttGlobalPublishFilter.ALL, this::received);
        return client.connect(connectPacket(request)).handle((connack, error) -> {
            if (error == null) {
                isConnected = true;
                JsonObject answer = new JsonObject();
                answer.addProperty("session_present", connack.isSessionPresent());
                JsonObject properties = new JsonObject();
                connack.getAssignedClientIdentifier()
                        .ifPresent(id -> properties.addProperty("assigned_client_identifier", id.toString()));
                answer.add("properties", properties);
                return answer;
            }
            if (Driver.cause(error) instanceof Mqtt5ConnAckException) {
                JsonObject answer = Driver.reason(((Mqtt5ConnAckException) Driver.cause(error)).getMqttMessage().getReasonCode().getCode());
                answer.addProperty("refused", true);
                return answer;
            }
            throw new CompletionException(Driver.cause(error));
        });
    }

    private static Mqtt5Connect connectPacket(JsonObject request) {
        JsonObject fields = Driver.fields(request);
        Mqtt5ConnectBuilder builder = Mqtt5Connect.builder()
                .cleanStart(Driver.flag(request, "clean"))
                .keepAlive(request.get("keep_alive").getAsInt())
                .sessionExpiryInterval(Driver.number(fields, "session_expiry_interval", 0))
                .restrictions(restrictions(fields));
        if (request.has("username")) {
            builder = builder.simpleAuth()
                    .username(Driver.text(request, "username"))
                    .password(Driver.text(request, "password").getBytes(StandardCharsets.UTF_8))
                    .applySimpleAuth();
        }
        if (request.has("will")) {
            builder = builder.willPublish(will(request.getAsJsonObject("will")));
        }
        return builder.build();
    }

    private static Mqtt5ConnectRestrictions restrictions(JsonObject fields) {
        Mqtt5ConnectRestrictionsBuilder builder = Mqtt5ConnectRestrictions.builder();
        if (fields.has("receive_maximum")) {
            builder = builder.receiveMaximum(fields.get("receive_maximum").getAsInt());
        }
        if (fields.has("maximum_packet_size")) {
            builder = builder.maximumPacketSize(fields.get("maximum_packet_size").getAsInt());
        }
        if (fields.has("topic_alias_maximum")) {
            builder = builder.topicAliasMaximum(fields.get("topic_alias_maximum").getAsInt());
        }
        return builder.build();
    }

    private static Mqtt5WillPublish will(JsonObject message) {
        JsonObject fields = Driver.fields(message);
        Mqtt5WillPublishBuilder.Complete builder = Mqtt5WillPublish.builder()
                .topic(Driver.text(message, "topic"))
                .payload(Driver.bytes(message, "payload"))
                .qos(MqttQos.fromCode(message.get("qos").getAsInt()))
                .retain(Driver.flag(message, "retain"))
                .delayInterval(Driver.number(fields, "will_delay_interval", 0))
                .userProperties(userProperties(fields));
        if (fields.has("content_type")) {
            builder = builder.contentType(Driver.text(fields, "content_type"));
        }
        return builder.build();
    }

    private static Mqtt5UserProperties userProperties(JsonObject fields) {
        Mqtt5UserPropertiesBuilder builder = Mqtt5UserProperties.builder();
        for (JsonElement pair : Driver.pairs(fields)) {
            builder = builder.add(pair.getAsJsonArray().get(0).getAsString(), pair.getAsJsonArray().get(1).getAsString());
        }
        return builder.build();
    }

    private void received(Mqtt5Publish message) {
        JsonObject event = Driver.message(
                name, message.getTopic().toString(), message.getPayloadAsBytes(), message.getQos().getCode(), message.isRetain());
        JsonObject fields = new JsonObject();
        message.getPayloadFormatIndicator().ifPresent(value -> fields.addProperty("payload_format_indicator", value.getCode()));
        message.getMessageExpiryInterval().ifPresent(value -> fields.addProperty("message_expiry_interval", value));
        message.getContentType().ifPresent(value -> fields.addProperty("content_type", value.toString()));
        message.getResponseTopic().ifPresent(value -> fields.addProperty("response_topic", value.toString()));
        message.getCorrelationData().ifPresent(value ->
                fields.addProperty("correlation_data", Base64.getEncoder().encodeToString(Driver.bytes(value))));
        JsonArray pairs = new JsonArray();
        message.getUserProperties().asList().forEach(property -> {
            JsonArray pair = new JsonArray();
            pair.add(property.getName().toString());
            pair.add(property.getValue().toString());
            pairs.add(pair);
        });
        fields.add("user_properties", pairs);
        event.add("properties", fields);
        Driver.send(event);
    }

    @Override
    public CompletableFuture<JsonObject> subscribe(JsonObject request) {
        Mqtt5Subscription subscription = Mqtt5Subscription.builder()
                .topicFilter(Driver.text(request, "filter"))
                .qos(MqttQos.fromCode(Driver.number(request, "qos", 0)))
                .noLocal(Driver.flag(request, "no_local"))
                .retainAsPublished(Driver.flag(request, "retain_as_published"))
                .retainHandling(Mqtt5RetainHandling.fromCode(Driver.number(request, "retain_handling", 0)))
                .build();
        Mqtt5SubscribeBuilder.Complete packet = Mqtt5Subscribe.builder().addSubscription(subscription);
        return client.subscribe(packet.build()).handle((suback, error) -> {
            if (error == null) {
                return Driver.reason(suback.getReasonCodes().get(0).getCode());
            }
            if (Driver.cause(error) instanceof Mqtt5SubAckException) {
                // A refused filter is an error to the client.
                return Driver.reason(((Mqtt5SubAckException) Driver.cause(error)).getMqttMessage().getReasonCodes().get(0).getCode());
            }
            throw new CompletionException(Driver.cause(error));
        });
    }

    @Override
    public CompletableFuture<JsonObject> unsubscribe(JsonObject request) {
        return client.unsubscribeWith().topicFilter(Driver.text(request, "filter")).send().handle((unsuback, error) -> {
            if (error == null) {
                return Driver.reason(unsuback.getReasonCodes().get(0).getCode());
            }
            if (Driver.cause(error) instanceof Mqtt5UnsubAckException) {
                return Driver.reason(((Mqtt5UnsubAckException) Driver.cause(error)).getMqttMessage().getReasonCodes().get(0).getCode());
            }
            throw new CompletionException(Driver.cause(error));
        });
    }

    @Override
    public CompletableFuture<JsonObject> publish(JsonObject request) {
        JsonObject fields = Driver.fields(request);
        // Topic aliases are the client's own business: it uses as many as the broker allows.
        Mqtt5PublishBuilder.Complete builder = Mqtt5Publish.builder()
                .topic(Driver.text(request, "topic"))
                .payload(Driver.bytes(request, "payload"))
                .qos(MqttQos.fromCode(request.get("qos").getAsInt()))
                .retain(Driver.flag(request, "retain"))
                .userProperties(userProperties(fields));
        if (fields.has("payload_format_indicator")) {
            builder = builder.payloadFormatIndicator(
                    Mqtt5PayloadFormatIndicator.fromCode(fields.get("payload_format_indicator").getAsInt()));
        }
        if (fields.has("message_expiry_interval")) {
            builder = builder.messageExpiryInterval(fields.get("message_expiry_interval").getAsLong());
        }
        if (fields.has("content_type")) {
            builder = builder.contentType(Driver.text(fields, "content_type"));
        }
        if (fields.has("response_topic")) {
            builder = builder.responseTopic(Driver.text(fields, "response_topic"));
        }
        if (fields.has("correlation_data")) {
            builder = builder.correlationData(Driver.bytes(fields, "correlation_data"));
        }
        return client.publish(builder.build()).handle((result, error) -> {
            if (error == null) {
                return acknowledged(result);
            }
            if (Driver.cause(error) instanceof Mqtt5PubAckException) {
                return Driver.reason(((Mqtt5PubAckException) Driver.cause(error)).getMqttMessage().getReasonCode().getCode());
            }
            throw new CompletionException(Driver.cause(error));
        });
    }

    private static JsonObject acknowledged(Mqtt5PublishResult result) {
        if (result instanceof Mqtt5PublishResult.Mqtt5Qos1Result) {
            return Driver.reason(((Mqtt5PublishResult.Mqtt5Qos1Result) result).getPubAck().getReasonCode().getCode());
        }
        return new JsonObject();
    }

    @Override
    public CompletableFuture<JsonObject> disconnect(JsonObject request) {
        Mqtt5DisconnectBuilder builder = Mqtt5Disconnect.builder();
        JsonObject fields = Driver.fields(request);
        if (fields.has("session_expiry_interval")) {
            builder = builder.sessionExpiryInterval(fields.get("session_expiry_interval").getAsLong());
        }
        return client.disconnect(builder.build()).thenApply(done -> new JsonObject());
    }
}
