package edgeopt.example

import android.content.Context
import java.io.Closeable
import java.io.FileInputStream
import java.nio.ByteBuffer
import java.nio.ByteOrder
import java.nio.MappedByteBuffer
import java.nio.channels.FileChannel
import org.tensorflow.lite.Interpreter

/**
 * The file that `edgeopt optimize --emit litert` wrote, from the app's assets.
 *
 * Pictures have their channels last: 1 x height x width x channels, float32, as `recipe` in the bundle's manifest makes
 * them of a frame (size, padding, order of colours, scale and mean). Outputs keep the ONNX model's names and shapes.
 */
class EdgeoptModel(context: Context, asset: String = "model.tflite", threads: Int = 4) : Closeable {

    private val interpreter = Interpreter(
        mapped(context, asset),
        Interpreter.Options().setNumThreads(threads),
    )

    /** The one signature of the file; its names are those of the ONNX model. */
    private val signature: String = interpreter.signatureKeys.single()

    val inputNames: List<String> = interpreter.getSignatureInputs(signature).toList()
    val outputNames: List<String> = interpreter.getSignatureOutputs(signature).toList()

    /** The shape of an input, channels last for pictures. */
    fun inputShape(name: String): IntArray = interpreter.getInputTensorFromSignature(name, signature).shape()

    /** The shape of an output, as in the ONNX model. */
    fun outputShape(name: String): IntArray = interpreter.getOutputTensorFromSignature(name, signature).shape()

    /** Memory for an input, to be used again for each frame: allocating it costs more than filling it. */
    fun inputBuffer(name: String): ByteBuffer = floats(inputShape(name))

    /**
     * Run once.
     *
     * @param inputs Buffers by name, as `inputBuffer` makes them, filled from position 0.
     * @return Outputs by name, float32 in the model's order.
     */
    fun run(inputs: Map<String, ByteBuffer>): Map<String, FloatArray> {
        val buffers = outputNames.associateWith { floats(outputShape(it)) }
        inputs.values.forEach { it.rewind() }
        interpreter.runSignature(inputs, buffers.toMap<String, Any>(), signature)
        return buffers.mapValues { (_, buffer) ->
            buffer.rewind()
            FloatArray(buffer.remaining() / Float.SIZE_BYTES).also { buffer.asFloatBuffer().get(it) }
        }
    }

    override fun close() = interpreter.close()

    private companion object {
        fun mapped(context: Context, asset: String): MappedByteBuffer =
            context.assets.openFd(asset).use { file ->
                FileInputStream(file.fileDescriptor).channel.use { channel ->
                    channel.map(FileChannel.MapMode.READ_ONLY, file.startOffset, file.declaredLength)
                }
            }

        fun floats(shape: IntArray): ByteBuffer =
            ByteBuffer.allocateDirect(shape.fold(Float.SIZE_BYTES) { size, next -> size * next })
                .order(ByteOrder.nativeOrder())
    }
}
